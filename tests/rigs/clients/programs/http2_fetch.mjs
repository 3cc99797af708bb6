// Inside: Node's fetch, which speaks HTTP/1.1, to an origin that speaks HTTP/2 alone.
const headers = { Authorization: "Bearer of-the-client", "X-Kept": "yes" };
const said = await (await fetch("https://node.example/v1/said", { headers })).text();
const sent = { method: "POST", body: "over".repeat(100000) };
const echoed = (await (await fetch("https://node.example/v1/echo", sent)).text()).length;
console.log(JSON.stringify({ said, echoed }));
