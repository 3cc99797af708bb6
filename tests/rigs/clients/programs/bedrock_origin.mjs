// Outside: Bedrock's bidirectional stream, over HTTP/2. It verifies head and events by the key, and
// answers each event. Prints its port, and then a line for each event: its text, and whether its
// signature is right in the chain.
import { createHash, createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import http2 from "node:http2";
import { EventStreamCodec } from "@smithy/eventstream-codec";
import { fromUtf8, toUtf8 } from "@smithy/util-utf8";

const [chain, id, secret] = process.argv.slice(2);
const pem = readFileSync(chain);
const codec = new EventStreamCodec(toUtf8, fromUtf8);
const digest = (data) => createHash("sha256").update(data).digest("hex");
const mac = (key, text) => createHmac("sha256", key).update(text);
const text = (value) => ({ type: "string", value });

function isRight(event, prior, signature) {
  const stamp = event.headers[":date"].value.toISOString().replace(/[-:]|\.\d+/g, "");
  const scope = `${stamp.slice(0, 8)}/eu-west-1/bedrock/aws4_request`;
  const key = scope.split("/").reduce((made, part) => mac(made, part).digest(), `AWS4${secret}`);
  const date = codec.formatHeaders({ ":date": event.headers[":date"] });
  const signed = [stamp, scope, prior, digest(date), digest(event.body)];
  return mac(key, ["AWS4-HMAC-SHA256-PAYLOAD", ...signed].join("\n")).digest("hex") === signature;
}

const server = http2.createSecureServer({ key: pem, cert: pem, allowHTTP1: false });
server.on("stream", (stream, fields) => {
  const known = fields.authorization.includes(`Credential=${id}/`);
  let prior = fields.authorization.split("Signature=")[1];
  let held = Buffer.alloc(0);
  stream.on("error", () => {});
  stream.respond({ ":status": 200, "content-type": "application/vnd.amazon.eventstream" });
  stream.on("data", (piece) => {
    held = Buffer.concat([held, piece]);
    while (held.length >= 4 && held.length >= held.readUInt32BE(0)) {
      const event = codec.decode(held.subarray(0, held.readUInt32BE(0)));
      held = held.subarray(held.readUInt32BE(0));
      const signature = Buffer.from(event.headers[":chunk-signature"].value).toString("hex");
      const right = known && isRight(event, prior, signature);
      prior = signature;
      const inner = event.body.length ? JSON.parse(toUtf8(codec.decode(event.body).body)) : null;
      const said = inner ? Buffer.from(inner.bytes, "base64").toString() : "";
      console.log(JSON.stringify([said, right]));
      if (!inner) continue;
      const headers = { ":event-type": text("chunk"), ":message-type": text("event") };
      headers[":content-type"] = text("application/json");
      const bytes = Buffer.from(`heard ${said}`).toString("base64");
      stream.write(codec.encode({ headers, body: fromUtf8(JSON.stringify({ bytes })) }));
    }
  });
  stream.on("end", () => stream.end());
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
