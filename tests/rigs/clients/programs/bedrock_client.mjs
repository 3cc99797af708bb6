// Inside: AWS's SDK, unmodified, in a bidirectional stream. Each event waits for the answer to the
// one before it. Prints what was heard, as JSON.
import {
  BedrockRuntimeClient,
  InvokeModelWithBidirectionalStreamCommand,
} from "@aws-sdk/client-bedrock-runtime";

const COUNT = 40;
let answered;
const heard = [];

async function* body() {
  for (let number = 0; number < COUNT; number++) {
    const answer = new Promise((resolve) => (answered = resolve));
    yield { chunk: { bytes: new TextEncoder().encode(`event ${number}`) } };
    await answer;
  }
}

const client = new BedrockRuntimeClient({ region: "eu-west-1" });
const command = { modelId: "amazon.nova-sonic-v1:0", body: body() };
const found = await client.send(new InvokeModelWithBidirectionalStreamCommand(command));
for await (const event of found.body) {
  heard.push(new TextDecoder().decode(event.chunk.bytes));
  answered();
}
console.log(JSON.stringify(heard));
process.exit(0);
