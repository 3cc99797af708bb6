// Inside: what Node's client of HTTP/2 meets at an origin, one trial after another, as JSON.
import http2 from "node:http2";

const [host, ...trials] = process.argv.slice(2);
const client = http2.connect(`https://${host}`);
client.on("error", (error) => {
  console.log(String(error));
  process.exit(1);
});

// What is got of a stream until its end, however that comes.
function finished(stream) {
  return new Promise((resolve) => {
    const got = { status: 0, text: "", interim: [], trailers: null, error: "" };
    stream.on("headers", (fields) => got.interim.push([fields[":status"], fields.link ?? ""]));
    stream.on("response", (fields) => {
      got.status = fields[":status"];
      got.method = fields["x-method"];
    });
    stream.on("trailers", (fields) => (got.trailers = { ...fields }));
    stream.on("data", (piece) => (got.text += piece));
    stream.on("error", (error) => (got.error = error.code));
    stream.on("close", () => resolve({ ...got, code: stream.rstCode }));
  });
}

const ask = (path, method = "GET") =>
  finished(client.request({ ":path": path, ":method": method, authorization: "mine", "x-kept": "yes" }));
const nextLine = () => new Promise((resolve) => process.stdin.once("data", resolve));
const nextPiece = (stream) => new Promise((resolve) => stream.once("data", resolve));

const kinds = {
  said: () => ask("/v1/said"),
  head: () => ask("/v1/said", "HEAD"),
  hints: () => ask("/v1/hints"),
  reset: () => ask("/v1/reset"),
  async echo() {
    const options = { endStream: false, waitForTrailers: true };
    const stream = client.request({ ":path": "/v1/echo", ":method": "POST" }, options);
    stream.on("wantTrailers", () => stream.sendTrailers({ "x-sent": "after it all" }));
    const end = finished(stream);
    const pieces = [];
    for (let number = 0; number < 20; number++) {
      const piece = nextPiece(stream);
      stream.write(`piece ${number}\n`);
      pieces.push(String(await piece).trim());
    }
    stream.end();
    return { ...(await end), pieces };
  },
  async expect() {
    const fields = { ":path": "/v1/expect", ":method": "POST", expect: "100-continue" };
    const stream = client.request(fields);
    const end = finished(stream);
    await new Promise((resolve) => stream.once("continue", resolve));
    stream.end("what was waited for");
    return { ...(await end), continued: true };
  },
  async cancel() {
    const stream = client.request({ ":path": "/v1/endless" });
    const end = finished(stream);
    await nextPiece(stream);
    stream.close(http2.constants.NGHTTP2_CANCEL);
    return end;
  },
  async farewell() {
    const asked = Array.from({ length: 60 }, () => ask("/v1/farewell"));
    return (await Promise.all(asked)).map((each) => each.text);
  },
  // Begins when a line comes in, and reads when another does; other streams go on meanwhile.
  async slow() {
    console.log("ready");
    await nextLine();
    const stream = client.request({ ":path": "/v1/much" });
    await new Promise((resolve) => stream.once("response", resolve));
    let size = 0;
    const others = await Promise.all([1, 2, 3, 4].map(() => ask("/v1/said")));
    console.log("held");
    await nextLine();
    process.stdin.destroy();
    stream.on("data", (piece) => (size += piece.length));
    await new Promise((resolve) => stream.on("close", resolve));
    return { size, others: others.map((each) => each.status) };
  },
  // Says when it has begun, and how it ended.
  async endless() {
    const stream = client.request({ ":path": "/v1/endless" });
    const end = finished(stream);
    await nextPiece(stream);
    console.log("begun");
    return end;
  },
};

const found = {};
for (const trial of trials) found[trial] = await kinds[trial]();
client.close();
console.log(JSON.stringify(found));
