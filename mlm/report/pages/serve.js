"use strict";
const form = document.getElementById("ask"), field = document.getElementById("text");
const go = document.getElementById("go"), statusLine = document.getElementById("status");
const chips = document.getElementById("words");
const columns = [...document.querySelectorAll(".column")];
const MASK = "[MASK]";
const SHOWN = 160, SLACK = 40;  // characters of a neighbor that are shown at first, if it has more than both
let round = 0;  // answers to earlier requests are dropped
let typed = 0;  // timer of the link to what is typed

columns.forEach((column, i) => column.style.setProperty("--series", `var(--s${i % 8})`));

function make(name, kind = "", text = "") {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.textContent = text;
  return element;
}

async function requestAnswer(request) {
  const response = await fetch("ask", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request),
  }).catch(() => { throw new Error("the server does not answer; is it still running?"); });
  const reply = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (reply.error !== undefined) throw new Error(reply.error);
  return reply.answer;
}

function percent(share) {
  return share < 0.001 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`;
}

function bar(one, label) {
  const row = make("button", "filling");
  const length = make("span", "bar");
  length.style.width = `${100 * one.probability}%`;
  row.append(length, make("span", "token", label), make("span", "share", percent(one.probability)));
  return row;
}

function makeList(rows) {
  const list = make("ol");
  for (const row of rows) {
    const item = make("li");
    item.append(row);
    list.append(item);
  }
  return list;
}

function cutEnd(text, size) {
  const characters = [...text];
  if (characters.length <= size + SLACK) return text;
  return `${characters.slice(0, size).join("").replace(/\s+\S{0,20}$/, "")} …`;
}

function cutStart(text, size) {
  const characters = [...text];
  if (characters.length <= size + SLACK) return text;
  return `… ${characters.slice(-size).join("").replace(/^\S{0,20}\s+/, "")}`;
}

// A neighbor and its cosine. A long one, whose short form differs, has a button that shows all of it.
function makeNeighbor(one, before, word, after) {
  const row = make("div", "near"), found = make("span", "found"), text = make("span");
  const short = [word ? cutStart(before, SHOWN / 2) : before, word, cutEnd(after, word ? SHOWN / 2 : SHOWN)];
  const fill = ([first, middle, last]) => text.replaceChildren(first, ...(word ? [make("b", "", middle)] : []), last);
  fill(short);
  found.append(text);
  if (short[0] !== before || short[2] !== after) {
    const button = make("button", "more", "more");
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "false";
      fill(open ? [before, word, after] : short);
      button.textContent = open ? "less" : "more";
      button.setAttribute("aria-expanded", open);
    });
    found.append(" ", button);
  }
  row.append(found, make("span", "cosine", one.cosine.toFixed(3)));
  row.title = `line ${one.line}`;
  return row;
}

const show = {
  fill_mask(masks) {
    return masks.flatMap((fillings, number) => [
      ...(masks.length > 1 ? [make("p", "mask", `${MASK} ${number + 1}`)] : []),
      makeList(fillings.map(one => {
        const row = bar(one, one.token.replace(/^\u2581/, "") || " ");
        row.title = one.text;
        row.type = "button";
        row.addEventListener("click", () => askFor(one.text));
        return row;
      }))]);
  },
  predict(rows) {
    const named = rows.length > 1;
    return [makeList(rows.map(one => {
      const label = typeof one.label === "number" ? one.label.toFixed(3) : one.label;
      const row = bar({ probability: one.probability ?? 0 }, named ? `${one.text}  ${label}` : label);
      if (one.probability === null) row.lastChild.textContent = "";
      row.disabled = true;
      return row;
    }))];
  },
  similar({ text, near }, requested) {
    return [...(text === requested ? [] : [make("p", "of", `with ${MASK} filled in: ${text}`)]),
      makeList(near.map(one => makeNeighbor(one, "", "", one.text)))];
  },
  word({ near }) {
    return [makeList(near.map(one => makeNeighbor(one, one.before, one.word, one.after)))];
  },
};

function part(column, what) {
  const found = column.querySelector(`[data-what=${what}]`);
  return found && found.dataset.unsupported === undefined ? found : null;
}

// Requests the answer of one model to one task, and shows it or the error.
async function fillPart(column, what, request, now) {
  const place = part(column, what);
  if (!place) return null;
  const box = place.querySelector(".answer");
  place.hidden = false;
  box.classList.add("waiting");
  try {
    const answer = await requestAnswer({ run: Number(column.dataset.run), what, ...request });
    if (now !== round) return null;
    box.replaceChildren(...show[what](answer, request.text));
    return answer;
  } catch (error) {
    if (now === round) box.replaceChildren(make("p", "wrong", error.message));
    return null;
  } finally {
    if (now === round) box.classList.remove("waiting");
  }
}

// The attention page in a frame, which is loaded when the details are opened.
function showAttention(column, text) {
  const place = part(column, "attend");
  if (!place) return;
  const details = place.querySelector("details"), box = place.querySelector(".answer");
  details.ontoggle = () => {
    if (!details.open) return;
    const frame = make("iframe"), link = make("a", "", "open as a separate page");
    const busy = make("p", "busy", "Computing the attention …");
    busy.setAttribute("role", "status");
    frame.addEventListener("load", () => busy.remove());
    frame.title = `${column.querySelector("h2").textContent}: attention`;
    frame.src = link.href = `attention?${new URLSearchParams({ run: column.dataset.run, text })}`;
    link.target = "_blank";
    box.replaceChildren(busy, frame, link);
    details.ontoggle = null;
  };
  details.ontoggle();
}

async function ask() {
  const text = field.value.trim().replace(/\s*\n\s*/g, " "), now = ++round;
  clearTimeout(typed);
  if (!text) {
    statusLine.className = "wrong";
    statusLine.textContent = "Type a sentence first.";
    field.focus();
    return;
  }
  statusLine.className = "";
  statusLine.textContent = "Waiting for answers …";
  form.setAttribute("aria-busy", "true");
  for (const column of columns) {
    const words = column.querySelector("[data-what=word]");
    if (words) words.hidden = true;
  }
  if (chips) chips.hidden = true;
  const link = `?${new URLSearchParams({ text })}`;
  if (location.search !== link) history[location.search ? "pushState" : "replaceState"](null, "", link);
  const filled = [];
  await Promise.all(columns.map(async (column, i) => {
    if (text.includes(MASK)) filled[i] = await fillPart(column, "fill_mask", { text }, now);
    else part(column, "fill_mask")?.querySelector(".answer").replaceChildren(
      make("p", "none", `Put ${MASK} where the model should predict a word.`));
    await fillPart(column, "predict", { text }, now);
    const known = !text.includes(MASK) || part(column, "fill_mask");
    if (!known) {
      part(column, "similar")?.querySelector(".answer").replaceChildren(
        make("p", "none", `This model cannot fill in ${MASK}: compare texts without it.`));
    }
    const near = known ? await fillPart(column, "similar", { text }, now) : null;
    if (near && chips && chips.hidden && !text.includes(MASK)) showWords(near.words, text);
    if (now === round) showAttention(column, text);
  }));
  if (now !== round) return;
  statusLine.textContent = text.includes(MASK) ? compareFillings(filled) : "";
  form.removeAttribute("aria-busy");
}

function askFor(text) {
  field.value = text;
  grow();
  ask();
}

// Marks the columns whose first token differs from the optimum's, or without one from the first column's, and where the
// optimum's probabilities end in the bars of the others. Returns what differs, in words.
function compareFillings(filled) {
  const answered = columns.map((_, i) => i).filter(i => filled[i]), name = i => columns[i].querySelector("h2").textContent;
  if (answered.length < 2) return "";
  const optimum = answered.find(i => "optimum" in columns[i].dataset), reference = optimum ?? answered[0];
  const plain = one => one.token.replace(/^\u2581/, ""), others = answered.filter(i => i !== reference);
  const lists = i => [...columns[i].querySelectorAll("[data-what=fill_mask] ol")], differing = [];
  filled[reference].forEach((best, number) => {
    const shares = new Map(best.map(one => [plain(one), one.probability])), first = plain(best[0]);
    for (const i of others) {
      const rows = lists(i)[number].querySelectorAll(".filling");
      if (plain(filled[i][number][0]) !== first) {
        rows[0].querySelector(".token").append(make("span", "differs", `\u2260 ${first}`));
        differing.push(`${name(i)}${filled[i].length > 1 ? ` at ${MASK} ${number + 1}` : ""}`);
      }
      filled[i][number].forEach((one, at) => {
        const share = shares.get(plain(one));
        if (optimum === undefined || share === undefined) return;
        const tick = make("span", "tick");
        tick.style.left = `${100 * share}%`;
        rows[at].append(tick);
        rows[at].title += ` (${name(optimum)}: ${percent(share)})`;
      });
    }
  });
  const ticks = optimum === undefined ? "" : ` A line in a bar marks the probability of the ${name(optimum)}.`;
  return (differing.length ? `Another first word than ${name(reference)}: ${differing.join(", ")}.` :
    "All have the same first word.") + ticks;
}

// The words of a text, each a button that searches for its neighbors.
function showWords(words, text) {
  const seen = new Map();
  chips.replaceChildren(chips.firstElementChild, ...words.map(word => {
    const which = (seen.get(word) ?? 0) + 1;
    seen.set(word, which);
    const button = make("button", "", word);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      for (const other of chips.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
      for (const column of columns) {
        const place = part(column, "word");
        if (place) place.querySelector("h3").textContent = `Words similar to “${word}” in this context`;
        fillPart(column, "word", { text, word, which }, round);
      }
    });
    return button;
  }));
  chips.hidden = false;
}

function grow() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}

for (const button of document.querySelectorAll("#examples button")) {
  button.addEventListener("click", () => askFor(button.textContent));
}

field.addEventListener("input", () => {
  grow();
  clearTimeout(typed);
  typed = setTimeout(() => history.replaceState(null, "", `?${new URLSearchParams({ text: field.value })}`), 400);
});
function readLink() {
  field.value = new URLSearchParams(location.search).get("text") ?? field.defaultValue;
  grow();
  if (field.value) ask();
}
addEventListener("popstate", readLink);
field.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
addEventListener("resize", grow);
form.addEventListener("submit", event => {
  event.preventDefault();
  ask();
});
document.getElementById("hide").addEventListener("click", () => {
  const { selectionStart: first, selectionEnd: end } = field;
  field.setRangeText(MASK, first, end, "end");
  field.focus();
  grow();
});
readLink();
