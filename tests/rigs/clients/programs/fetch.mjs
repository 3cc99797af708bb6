// Inside: Node's fetch and its https module.
import https from "node:https";

const url = "https://billing.example/v1/echo?page=2";
const headers = { Authorization: "Bearer of-the-client", "X-Kept": "yes" };

const fetched = await (await fetch(url, { headers })).json();
const got = await new Promise((resolve, reject) => {
  const take = (answer) => {
    let text = "";
    answer.on("data", (piece) => (text += piece)).on("end", () => resolve(JSON.parse(text)));
  };
  https.get(url, { headers }, take).on("error", reject);
});
console.log(JSON.stringify({ fetch: fetched, https: got }));
