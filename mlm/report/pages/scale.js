const EVEN = { to: value => value, from: value => value };
const LOG = { to: Math.log10, from: value => 10 ** value };  // values of 0 and below have no position

// Maps values to positions between 0 and 1; pad: the free share at each end.
function scale(values, kind, pad) {
  const known = values.map(kind.to).filter(Number.isFinite);
  let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  const room = pad * (high - low) || (kind === EVEN && 0.1 * Math.abs(high)) || 0.5;
  [low, high] = [low - room, high + room];
  return {
    kind, low: kind.from(low), high: kind.from(high),
    at: value => Number.isFinite(kind.to(value)) ? (kind.to(value) - low) / (high - low) : NaN,
  };
}

// The scale limited to bounds; a longer interval is drawn up to the end.
function within(bounded, low, high) {
  return scale([Math.max(bounded.low, low), Math.min(bounded.high, high)], EVEN, 1e-9);
}

// About `count` round values between the ends of a scale, with their names.
function ticks(of, count) {
  return (of.kind === LOG && decades(of, count)) || even(of.low, of.high, count);
}

function even(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw * 0.999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    found.push({ value: i * step, name: tickName(i * step, digits) });
  }
  return found;
}

// Ticks of a log scale; null if there would be too few, as in a part of a decade.
function decades(of, count) {
  const span = Math.log10(of.high / of.low), skip = Math.max(1, Math.ceil(span / count)), found = [];
  const each = [[1, 2, 5], [1, 3], [1]].find(some => some.length * span <= 1.5 * count) || [1];
  for (let power = Math.floor(Math.log10(of.low)); 10 ** power <= of.high; power++) {
    for (const first of power % skip ? [] : each) {
      const value = Number(`${first}e${power}`);
      if (value >= of.low && value <= of.high) found.push({ value, name: tickName(value) });
    }
  }
  return found.length > 1 ? found : null;
}

const LARGE = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const INTEGER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const THREE_DECIMALS = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

// The name of a tick; digits: decimal places.
function tickName(value, digits) {
  const size = Math.abs(value);
  if (size >= 1e15 || (size && (size < 1e-4 || digits > 5))) return Number(value.toPrecision(3)).toExponential();
  if (size >= 10000) return LARGE.format(value);
  return digits === undefined ? String(Number(value.toPrecision(6))) : value.toFixed(digits);
}

// The text of a value.
function precise(value) {
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(3);
  if (size >= 1000) return INTEGER.format(value);
  return size && size < 0.1 ? String(Number(value.toPrecision(3))) : THREE_DECIMALS.format(value);
}

// The text of an x value.
function placeName(value) {
  if (Math.abs(value) >= 1e15) return value.toExponential(3);
  return Math.abs(value) >= 1e7 ? COMPACT.format(value) : String(Number(value.toPrecision(7)));
}
