// Which texts would take a Markdown parser too long.

// marked looks for the end of each mark among all others of its block: a second for some thousand of them, a minute for
// ten times as many. Each line here is looked at once. Code, where a mark means nothing, counts for nothing. Likewise
// marked looks for an address from each character of a word on, and for the end of a line from each space on.
const MOST_MARKS = 2000;
const LONGEST_WORD = 2000;
const MOST_SPACES = 1000;

const isLong = (line) => {
  let spaces = 0;
  return line.split(/\s/).some((word) => {
    spaces = word ? 0 : spaces + 1;
    return word.length > LONGEST_WORD || spaces > MOST_SPACES;
  });
};

export const isTooCostly = (text) => {
  let marks = 0;
  let fence = "";
  for (const line of text.split("\n")) {
    const [, opening, rest] = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line) ?? [];
    if (fence) {
      if (opening?.startsWith(fence) && !rest.trim()) fence = "";
      continue;
    }
    if (opening && !(opening[0] === "`" && rest.includes("`"))) {
      fence = opening;
      continue;
    }
    if (!line.trim() || /^ {0,3}(?:#{1,6}|[-*+]) /.test(line)) marks = 0;
    marks += line.match(/[*_~`<[\]$\\]/g)?.length ?? 0;
    if (marks > MOST_MARKS || isLong(line)) return true;
  }
  return false;
};
