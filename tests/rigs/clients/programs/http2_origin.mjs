// Outside: an origin of HTTP/2. With a chain it has TLS; without, it is for a proxy that has.
// It prints its port, and then a line for each stream that was reset: its path and the code.
import { readFileSync } from "node:fs";
import http2 from "node:http2";

const [chain] = process.argv.slice(2);
const pem = chain && readFileSync(chain);
const server = chain
  ? http2.createSecureServer({ key: pem, cert: pem, allowHTTP1: false })
  : http2.createServer();
const MUCH = 64 << 20;
const PIECE = Buffer.alloc(1 << 16);
let asked = 0;

function pour(stream, left) {
  while (left > 0 && !stream.destroyed) {
    left -= PIECE.length;
    if (!stream.write(PIECE)) return stream.once("drain", () => pour(stream, left));
  }
  stream.end();
}

const paths = {
  "/v1/said": (stream, fields) => {
    stream.respond({ ":status": 200, "x-method": fields[":method"] });
    stream.end(`HTTP/2.0 ${fields[":method"]} ${fields.authorization} ${fields["x-kept"]}\n`);
  },
  // Each piece goes back before the next has come; so do the trailers.
  "/v1/echo": (stream, fields) => {
    let got = {};
    stream.on("trailers", (trailers) => (got = trailers));
    stream.on("wantTrailers", () =>
      stream.sendTrailers({ "x-got": got["x-sent"] ?? "none", "x-key": fields.authorization }));
    stream.respond({ ":status": 200 }, { waitForTrailers: true });
    stream.on("data", (piece) => stream.write(piece)).on("end", () => stream.end());
  },
  "/v1/hints": (stream) => {
    stream.additionalHeaders({ ":status": 103, link: "</style.css>; rel=preload" });
    stream.respond({ ":status": 200 });
    stream.end("hinted");
  },
  "/v1/expect": (stream, fields) => {
    if (fields.expect) stream.additionalHeaders({ ":status": 100 });
    let text = "";
    stream.on("data", (piece) => (text += piece)).on("end", () => {
      stream.respond({ ":status": 200 });
      stream.end(text);
    });
  },
  "/v1/much": (stream) => {
    stream.respond({ ":status": 200 });
    pour(stream, MUCH);
  },
  "/v1/endless": (stream) => {
    stream.respond({ ":status": 200 });
    stream.write("begun\n");
  },
  "/v1/reset": (stream) => {
    stream.respond({ ":status": 200 });
    stream.write("begun\n", () => stream.destroy(new Error("given up")));
  },
  // Every tenth of these has the connection say that it takes no more.
  "/v1/farewell": (stream) => {
    asked += 1;
    if (asked % 10 === 0) stream.session.close();
    stream.respond({ ":status": 200 });
    stream.end("answered");
  },
};

server.on("stream", (stream, fields) => {
  const path = fields[":path"];
  stream.on("error", () => {});
  // Node resets a stream whose request nobody reads, sometimes before its response has ended.
  if (fields[":method"] !== "POST") stream.resume();
  stream.on("close", () => {
    if (stream.rstCode) console.log(JSON.stringify([path, stream.rstCode]));
  });
  const answer = paths[path];
  if (answer) answer(stream, fields);
  else stream.respond({ ":status": 404 }, { endStream: true });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
