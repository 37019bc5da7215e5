// Ranks the results of the search: sections whose title matches first, then pages about tasks.
// Decisions and generated pages come last.
const LAST = /^(adr\/|reference\/(python-api|changes)|explanation\/(benchmarks|results))/;
const FIRST = /^(tutorial|runbook|how-to\/)/;
var Scorer = {
  score: function (result) {
    const [page, , anchor, , score] = result;
    if (LAST.test(page)) return score - 4;
    return score + (anchor ? 12 : 0) + (FIRST.test(page) ? 4 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 2,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
