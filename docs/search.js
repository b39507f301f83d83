// Search the built site for every mixer, by the names of its class and of its file, and for what
// newcomers look for. Print each search whose page does not come first: `node docs/search.js site`.
// The script that is asked is the one that runs in a browser.
const fs = require("fs"), path = require("path"), vm = require("vm");

const SETUP = 0, QUERY = 2; // kinds of messages that the script takes
const NEWCOMERS = {
  install: "getting-started/#install",
  "hidden size": "reference/state/#hidden-size",
  padding: "tutorials/packing/#padding",
  "nn.GRU": "tutorials/from-gru/",
};
const site = process.argv[2];
const workers = path.join(site, "assets/javascripts/workers");
const script = fs.readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));

let listener = null, last = null;
const worker = {
  addEventListener: (kind, heard) => { listener = heard; },
  postMessage: (message) => { last = message; },
  importScripts: () => {},
  location: { href: "file:///" },
  console, setTimeout, URL, Intl,
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(workers, script), "utf8"), worker);

async function first(words) {
  await listener({ data: { type: QUERY, data: words } });
  const found = last.data.items[0];
  return found ? found[0].location : "nothing";
}

async function main() {
  await listener({ data: { type: SETUP, data: { ...index, options: { suggest: false } } } });
  const pages = index.docs.filter((page) => /^mixers\/[^#]+\/$/.test(page.location));
  const complaints = pages.length ? [] : ["the site has no page of a mixer"];
  for (const page of pages) {
    for (const words of [page.title, page.location.split("/")[1]]) {
      const found = await first(words);
      if (found !== page.location) {
        complaints.push(`a search for ${words} finds ${found} before ${page.location}`);
      }
    }
  }
  const ours = index.docs.some((page) => page.location === "getting-started/");
  for (const [words, wanted] of ours ? Object.entries(NEWCOMERS) : []) {
    const found = await first(words);
    if (found !== wanted) complaints.push(`a search for ${words} finds ${found} before ${wanted}`);
  }
  for (const complaint of complaints) console.error(`docs: ${complaint}`);
  process.exitCode = complaints.length ? 1 : 0;
}

main();
