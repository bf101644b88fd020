// The search of the built site without a browser: runs the site's own scripts and the theme's worker on its index.
//   node site_search.js SITE < questions    prints, for each line, the pages of its results as a JSON list
const fs = require("fs"), path = require("path"), vm = require("vm");
const site = process.argv[2];
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const workers = path.join(site, "assets/javascripts/workers");
const source = fs.readFileSync(path.join(workers, fs.readdirSync(workers).find((name) => /^search\..*\.js$/.test(name))), "utf8");
let handler, answer;
const scope = { console, addEventListener: (_, listener) => (handler = listener), postMessage: (data) => answer(data) };
scope.self = scope;
vm.runInNewContext(source, scope);
class Worker {
  postMessage(data) { handler({ data }); }
}
vm.runInNewContext(fs.readFileSync(path.join(site, "search-words.js"), "utf8"), { Worker });
const ask = (type, data) => new Promise((resolve) => { answer = resolve; new Worker().postMessage({ type, data }); });
(async () => {
  await ask(0, { config: index.config, docs: index.docs, options: {} });
  for (const question of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    const { data } = await ask(2, question);
    console.log(JSON.stringify(data.items.map((sections) => sections[0].location.split("#")[0])));
  }
})();
