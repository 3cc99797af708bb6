// Inside: a call of grpc-js, its messages written by hand.
const { readFileSync } = require("node:fs");
const grpc = require("@grpc/grpc-js");

const trusted = grpc.credentials.createSsl(readFileSync("/etc/keyhole/bundle.pem"));
const client = new grpc.Client("calls.example:443", trusted);
const same = (bytes) => bytes;
const call = (method) => new Promise((resolve) => {
  const path = `/grpc.health.v1.Health/${method}`;
  const done = (error, bytes) => resolve(error ? [error.code, error.details] : [0, bytes.toString("hex")]);
  client.makeUnaryRequest(path, same, same, Buffer.alloc(0), done);
});
(async () => {
  console.log(JSON.stringify([await call("Check"), await call("Watch")]));
  client.close();
})();
