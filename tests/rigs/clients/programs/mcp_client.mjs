// A client of MCP by the official TypeScript SDKs: what it finds at each address is printed as JSON.
// Started as `mcp_client.mjs HOST PACKAGES`.
import { pathToFileURL } from 'node:url';

const [host, packages] = process.argv.slice(2);
const load = name => import(pathToFileURL(`${packages}/${name}`));

const attempt = async work => {
  try {
    const { content, contents, messages } = await work;
    return (content ?? contents ?? messages).map(part => part.text ?? '').join(' ');
  } catch (error) {
    return error.message;
  }
};

const look = async (client, transport) => {
  try {
    await client.connect(transport);
  } catch (error) {
    return error.message;
  }
  const found = {
    tools: (await client.listTools()).tools.map(tool => tool.name).sort(),
    resources: (await client.listResources()).resources.map(each => each.uri),
    prompts: (await client.listPrompts()).prompts.map(each => each.name),
    list: await attempt(client.callTool({ name: 'list_issues', arguments: {} })),
    delete: await attempt(client.callTool({ name: 'delete_issue', arguments: { number: 7 } })),
    roots: await attempt(client.callTool({ name: 'ask_client', arguments: { what: 'roots' } })),
    read: await attempt(client.readResource({ uri: 'docs://guide/start' })),
    'read other': await attempt(client.readResource({ uri: 'docs://internal/payroll' })),
  };
  await client.close();
  return found;
};

const me = { name: 'trial', version: '1' };
const { Client } = await load('sdk/dist/esm/client/index.js');
const { StreamableHTTPClientTransport } = await load('sdk/dist/esm/client/streamableHttp.js');
const { SSEClientTransport } = await load('sdk/dist/esm/client/sse.js');
const modern = await load('client/dist/index.mjs');
const at = path => new URL(`https://${host}${path}`);
const able = { capabilities: { roots: { listChanged: true }, sampling: {}, elicitation: {} } };

console.log(JSON.stringify({
  events: await look(new Client(me, able), new StreamableHTTPClientTransport(at('/mcp'))),
  json: await look(new Client(me), new StreamableHTTPClientTransport(at('/json'))),
  older: await look(new Client(me), new SSEClientTransport(at('/sse'))),
  modern: await look(new modern.Client(me), new modern.StreamableHTTPClientTransport(at('/mcp'))),
}));
process.exit(0);
