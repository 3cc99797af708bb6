// A client of MCP by the official TypeScript SDK, which asks in one session until a token was renewed.
// Started as `mcp_waiting.mjs HOST PACKAGES`; what it was told is printed as JSON.
import { pathToFileURL } from 'node:url';

const [host, packages] = process.argv.slice(2);
const load = name => import(pathToFileURL(`${packages}/${name}`));
const { Client } = await load('sdk/dist/esm/client/index.js');
const { StreamableHTTPClientTransport } = await load('sdk/dist/esm/client/streamableHttp.js');

const client = new Client({ name: 'trial', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(`https://${host}/mcp`)));
const told = [];
const generations = () => new Set(told.map(text => text.split(':')[0])).size;
for (const ends = Date.now() + 40_000; Date.now() < ends && generations() < 3; ) {
  const { content } = await client.callTool({ name: 'tell_tokens', arguments: {} });
  told.push(content.map(part => part.text ?? '').join(' '));
  await new Promise(done => setTimeout(done, 300));
}
console.log(JSON.stringify({ told, env: { ...process.env }, files: {} }));
process.exit(0);
