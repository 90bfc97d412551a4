"use strict";
const form = document.getElementById("ask"), field = document.getElementById("text");
const go = document.getElementById("go"), said = document.getElementById("said");
const chips = document.getElementById("words");
const columns = [...document.querySelectorAll(".column")];
const MASK = "[MASK]";
let round = 0;  // answers to a question before the last are dropped

columns.forEach((column, i) => column.style.setProperty("--series", `var(--s${i % 8})`));

function made(name, kind = "", text = "") {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.textContent = text;
  return element;
}

async function answer(question) {
  const sent = await fetch("ask", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question),
  }).catch(() => { throw new Error("the server does not answer; was it stopped?"); });
  const told = await sent.json().catch(() => ({ error: `the server answered ${sent.status}` }));
  if (told.error !== undefined) throw new Error(told.error);
  return told.answer;
}

function percent(share) {
  return share < 0.001 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`;
}

function bar(one, label) {
  const row = made("button", "filling");
  const length = made("span", "bar");
  length.style.width = `${100 * one.probability}%`;
  row.append(length, made("span", "token", label), made("span", "share", percent(one.probability)));
  return row;
}

function listed(rows) {
  const list = made("ol");
  for (const row of rows) {
    const item = made("li");
    item.append(row);
    list.append(item);
  }
  return list;
}

const show = {
  fill(masks) {
    return masks.flatMap((fillings, number) => [
      ...(masks.length > 1 ? [made("p", "mask", `${MASK} ${number + 1}`)] : []),
      listed(fillings.map(one => {
        const row = bar(one, one.token.replace(/^\u2581/, "") || " ");
        row.title = one.text;
        row.type = "button";
        row.addEventListener("click", () => { field.value = one.text; grow(); ask(); });
        return row;
      }))]);
  },
  predict(rows) {
    const named = rows.length > 1;
    return [listed(rows.map(one => {
      const label = typeof one.label === "number" ? one.label.toFixed(3) : one.label;
      const row = bar({ probability: one.probability ?? 0 }, named ? `${one.text}  ${label}` : label);
      if (one.probability === null) row.lastChild.textContent = "";
      row.disabled = true;
      return row;
    }))];
  },
  similar({ text, near }, asked) {
    return [...(text === asked ? [] : [made("p", "of", `filled in: ${text}`)]), listed(near.map(one => {
      const row = made("div", "near");
      row.append(made("span", "found", one.text), made("span", "cosine", one.cosine.toFixed(3)));
      row.title = `line ${one.line}`;
      return row;
    }))];
  },
  word({ near }) {
    return [listed(near.map(one => {
      const row = made("div", "near"), found = made("span", "found");
      found.append(one.before, made("b", "", one.word), one.after);
      row.append(found, made("span", "cosine", one.cosine.toFixed(3)));
      row.title = `line ${one.line}`;
      return row;
    }))];
  },
};

function part(column, what) {
  const found = column.querySelector(`[data-what=${what}]`);
  return found && found.dataset.cannot === undefined ? found : null;
}

// One part of one column asks, and shows what it is told, or why it is not.
async function fillPart(column, what, question, now) {
  const place = part(column, what);
  if (!place) return null;
  const box = place.querySelector(".answer");
  place.hidden = false;
  box.classList.add("waiting");
  try {
    const told = await answer({ run: Number(column.dataset.run), what, ...question });
    if (now !== round) return null;
    box.replaceChildren(...show[what](told, question.text));
    return told;
  } catch (error) {
    if (now === round) box.replaceChildren(made("p", "wrong", error.message));
    return null;
  } finally {
    if (now === round) box.classList.remove("waiting");
  }
}

// A page of its own in a frame, which is asked for when it is opened.
function attended(column, text) {
  const place = part(column, "attend");
  if (!place) return;
  const details = place.querySelector("details"), box = place.querySelector(".answer");
  details.ontoggle = () => {
    if (!details.open) return;
    const frame = made("iframe"), alone = made("a", "", "on a page of its own");
    frame.title = `${column.querySelector("h2").textContent}: what it looks at`;
    frame.src = alone.href = `attention?${new URLSearchParams({ run: column.dataset.run, text })}`;
    alone.target = "_blank";
    box.replaceChildren(frame, alone);
    details.ontoggle = null;
  };
  details.ontoggle();
}

async function ask() {
  const text = field.value.trim().replace(/\s*\n\s*/g, " "), now = ++round;
  if (!text) {
    said.className = "wrong";
    said.textContent = "Type a sentence first.";
    field.focus();
    return;
  }
  said.className = "";
  said.textContent = "Asking …";
  form.setAttribute("aria-busy", "true");
  for (const column of columns) {
    const words = column.querySelector("[data-what=word]");
    if (words) words.hidden = true;
  }
  if (chips) chips.hidden = true;
  await Promise.all(columns.map(async column => {
    if (text.includes(MASK)) await fillPart(column, "fill", { text }, now);
    else part(column, "fill")?.querySelector(".answer").replaceChildren(
      made("p", "none", `Put ${MASK} where a word is to be guessed.`));
    await fillPart(column, "predict", { text }, now);
    const known = !text.includes(MASK) || part(column, "fill");
    if (!known) {
      part(column, "similar")?.querySelector(".answer").replaceChildren(
        made("p", "none", `It fills nothing in: compare texts without ${MASK}.`));
    }
    const near = known ? await fillPart(column, "similar", { text }, now) : null;
    if (near && chips && chips.hidden && !text.includes(MASK)) choose(near.words, text);
    if (now === round) attended(column, text);
  }));
  if (now !== round) return;
  said.textContent = "";
  form.removeAttribute("aria-busy");
}

// The words of a text, each a button that asks for its neighbours.
function choose(words, text) {
  const seen = new Map();
  chips.replaceChildren(chips.firstElementChild, ...words.map(word => {
    const which = (seen.get(word) ?? 0) + 1;
    seen.set(word, which);
    const button = made("button", "", word);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      for (const other of chips.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
      for (const column of columns) {
        const place = part(column, "word");
        if (place) place.querySelector("h3").textContent = `Words like “${word}” here`;
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

field.addEventListener("input", grow);
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
grow();
if (field.value) ask();
