// The search looks for any word that begins with one of the query: "I" finds "images", and "workers" no "worker".
// Before a query reaches it, this drops the small words of a question and the "s" of plurals.
const SMALL = new Set(
  ("a about after all am an and any are as at be before by can cannot could did do does don't for from get give has have how " +
    "i i'm if in into is it its me mean means must my need not of on or our own should so than that the their them then " +
    "there these they this to use using want was we were what when where which who why will with would you your").split(" "),
);
const asked = (query) => {
  if (query.includes('"')) return query;
  const words = query.split(/[\s?]+/).filter(Boolean);
  const large = words.filter((word) => !SMALL.has(word.toLowerCase()));
  return (large.length ? large : words).map((word) => word.replace(/(\w{2}[^su])s$/, "$1")).join(" ");
};
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const query = message?.type === 2 && typeof message.data === "string"; // 2 is a query of the theme's search
  return post.call(this, query ? { ...message, data: asked(message.data) } : message, ...rest);
};
