'use strict';
// Charts, and tables that sort, filter and download. Names of owners and methods come from strangers: they become text
// (textContent) and never HTML.
const data = JSON.parse(document.getElementById('data').textContent);
const all = (what, where = document) => [...where.querySelectorAll(what)];
const NONE = '–', MOST = 60; // so many rows of the long table are shown at first
const CLASSES = data.words.map(word => word.split(' ')[0]);

// ---- Elements, numbers, text

const filled = (element, given, inside) => {
  for (const [key, value] of Object.entries(given)) {
    if (key === 'text') element.textContent = value;
    else if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'style') for (const [name, x] of Object.entries(value)) element.style.setProperty(name, x);
    else if (value !== undefined) element.setAttribute(key, value);
  }
  element.append(...inside);
  return element;
};
const make = (tag, given = {}, ...inside) => filled(document.createElement(tag), given, inside);
const draw = (tag, given = {}, ...inside) =>
  filled(document.createElementNS('http://www.w3.org/2000/svg', tag), given, inside);
const known = x => x !== null && x !== undefined;
const number = (x, sign = false) => {
  if (!known(x)) return NONE;
  const digits = data.measure.percent ? 1 : Math.abs(x) >= 999.5 ? 0 : undefined;
  const text = Math.abs(x).toLocaleString('en', digits === undefined ? { minimumSignificantDigits: x ? 3 : 1, maximumSignificantDigits: 3 } :
    { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const zero = Number(text.replaceAll(',', '')) === 0;
  return (x < 0 && !zero ? '−' : sign && !zero ? '+' : '') + text;
};
const short = x => x.toLocaleString('en', { maximumSignificantDigits: 3 }).replace('-', '−');
const span = (low, high) => `${number(low, true)} to ${number(high, true)}`;
const mean = values => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;

// ---- What the reader has chosen

const judged = data.ways.filter(way => way.gains);
const choosable = data.ways.filter(way => way.gains || (data.curves && data.curves.lines[way.name]));
const state = {
  wanted: '', ways: new Set(data.ways.filter(way => way.on).map(way => way.name)),
  words: new Set(data.words), sort: 3, down: true, whole: false,
  log: false, zoom: null, // of the curves: a logarithmic axis, and the first and last round that are shown
};
const KEPT = 'fairlead:' + location.pathname;
const keep = () => { // across the reloads of a page that follows a run
  if (data.live) sessionStorage.setItem(KEPT, JSON.stringify({ wanted: state.wanted, off: data.ways
    .filter(way => !state.ways.has(way.name)).map(way => way.name), log: state.log, zoom: state.zoom }));
};
const recall = () => {
  const kept = data.live && JSON.parse(sessionStorage.getItem(KEPT));
  if (!kept) return;
  for (const key of ['wanted', 'log', 'zoom']) state[key] = kept[key];
  kept.off.forEach(name => state.ways.delete(name));
};
const matching = () => {
  const wanted = state.wanted.trim().toLowerCase(), names = data.owners.map(name => name.toLowerCase());
  const exact = names.indexOf(wanted);
  return exact >= 0 ? [exact] : names.flatMap((name, k) => name.includes(wanted) ? [k] : []);
};
const choose = name => { state.wanted = state.wanted === name ? '' : name; refresh(); };

// ---- What shows at the pointer

const tip = make('div', { id: 'tip', role: 'status', hidden: '' });
document.body.append(tip);
const say = (event, text) => {
  tip.textContent = text;
  tip.hidden = false;
  const right = event.clientX + 14 + tip.offsetWidth > innerWidth;
  tip.style.left = Math.max(4, right ? event.clientX - tip.offsetWidth - 10 : event.clientX + 14) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)) + 'px';
};
const quiet = () => { tip.hidden = true; };
// The arrow keys go through a chart as the pointer does; `show(i, event)` tells value i of `count`.
const steps = (svg, count, show) => {
  let now = -1;
  filled(svg, { tabindex: 0, onblur: quiet, onkeydown: event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    now = Math.min(Math.max(now + step, 0), count - 1);
    const box = svg.getBoundingClientRect();
    show(now, { clientX: box.left + 40, clientY: box.top + 8 });
  } }, []);
};

// ---- Charts

const ticks = (low, high, count) => {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(x => x * power >= raw);
  const first = Math.ceil(low / step - 1e-9), found = [];
  for (let i = first; i * step <= high + step * 1e-9; i++) found.push(i * step + 0); // never minus zero
  return found;
};
// 1, 2, 5, 10 ... between two numbers above zero; where fewer than three fit, evenly spaced ones.
const powers = (low, high) => {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
    found.push(...[1, 2, 5].map(x => x * 10 ** p).filter(x => x >= low && x <= high));
  return found.length > 2 ? found : ticks(low, high, 4).filter(x => x > 0);
};
const around = (values, margin = 0.06) => {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low) * margin || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
};

// An empty chart: grid, numbers and titles; `x` and `y` are {low, high, title}, and `y` may be logarithmic: {log}.
const chart = (box, height, x, y, said) => {
  const width = Math.max(box.clientWidth, 220);
  const marks = y.log ? powers(y.low, y.high) : ticks(y.low, y.high, 5), left = 12 + 7 * Math.max(...marks.map(v => short(v).length));
  const top = 24, bottom = height - 38, right = width - 14;
  const px = v => left + (v - x.low) / (x.high - x.low || 1) * (right - left);
  const to = y.log ? Math.log10 : v => v;
  const py = v => bottom - (to(v) - to(y.low)) / (to(y.high) - to(y.low) || 1) * (bottom - top);
  const svg = draw('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': said });
  for (const v of marks) {
    svg.append(draw('line', { class: 'grid', x1: left, x2: right, y1: py(v), y2: py(v) }));
    svg.append(draw('text', { class: 'soft', x: left - 6, y: py(v) + 4, 'text-anchor': 'end', text: short(v) }));
  }
  const below = x.ticks === false ? [] : ticks(x.low, x.high, Math.min(8, width / 90));
  for (const v of below.filter(v => !x.whole || Number.isInteger(v)))
    svg.append(draw('text', { class: 'soft', x: px(v), y: bottom + 16, 'text-anchor': 'middle', text: short(v) }));
  svg.append(draw('text', { class: 'soft', x: (left + right) / 2, y: height - 4, 'text-anchor': 'middle', text: x.title }));
  svg.append(draw('text', { class: 'soft', x: 2, y: 12, text: y.title }));
  return { svg, px, py, left, right, top, bottom };
};
const at = (event, svg) => {
  const box = svg.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const MARKS = [ // by verdict, of size s around (x, y)
  (x, y, s) => `M${x} ${y - s}l${s} ${1.7 * s}h${-2 * s}Z`, (x, y, s) => `M${x} ${y + s}l${s} ${-1.7 * s}h${-2 * s}Z`,
  (x, y, s) => `M${x - s} ${y}a${s} ${s} 0 1 0 ${2 * s} 0a${s} ${s} 0 1 0 ${-2 * s} 0Z`,
  (x, y, s) => `M${x} ${y - s}l${s} ${s}l${-s} ${s}l${-s} ${-s}Z`,
];
const told = (way, k) => {
  const rows = known(data.test[k]) ? `\n${data.test[k].toLocaleString('en')} test rows` : '';
  const gain = known(way.gains[k]) ? `${number(way.gains[k], true)}${data.measure.unit}` : NONE;
  return `${data.owners[k]}, ${way.name}\n${known(way.verdicts[k]) ? data.words[way.verdicts[k]] : 'not judged'}\n` +
    `gain ${gain}, ${data.level} interval ${span(way.low[k], way.high[k])}${rows}`;
};

// An interval that reaches the edge of the scale goes on beyond it.
const clamp = v => Math.min(Math.max(v, data.axis[0]), data.axis[1]);

// All owners of a way to train, sorted by gain, on the scale of the gains. Intervals of hundreds of owners would be one block:
// of so many, those are drawn that exclude zero, and those of owners that the reader has chosen.
const gains = (box, ways, match) => {
  const chosen = new Set(match), few = chosen.size < 6, drawn = data.owners.length <= 100;
  const [low, high] = around([0, ...ways.flatMap(way => way.gains.filter(known))]);
  const clip = v => Math.min(Math.max(v, low), high);
  for (const way of ways) {
    const order = data.owners.map((_, k) => k).filter(k => known(way.gains[k])).sort((a, b) => way.gains[a] - way.gains[b]);
    if (!order.length) continue;
    const figure = make('figure', {}, make('h4', { text: way.name }));
    box.append(figure);
    const c = chart(figure, 260, { low: 0, high: order.length + 1, title: `${order.length.toLocaleString('en')} owners, lowest gain first`, ticks: false },
      { low, high, title: `gain over the bar${data.measure.unit}` },
      `${way.name}: the gains of ${order.length} owners, sorted`);
    const size = Math.max(1.8, Math.min(5, (c.right - c.left) / order.length / 2));
    c.svg.append(draw('line', { class: 'zero', x1: c.left, x2: c.right, y1: c.py(0), y2: c.py(0) }));
    for (const faded of [true, false]) data.words.forEach((_, word) => {
      let lines = '', marks = '';
      order.forEach((k, rank) => {
        if (way.verdicts[k] !== word || chosen.has(k) === faded) return;
        const x = c.px(rank + 1).toFixed(1), ends = [clip(way.low[k] ?? low), clip(way.high[k] ?? high)];
        if (drawn || word < 2 || few && !faded) lines += `M${x} ${c.py(ends[0]).toFixed(1)}V${c.py(ends[1]).toFixed(1)}`;
        marks += MARKS[word](+x, +c.py(way.gains[k]).toFixed(1), !faded && few ? 6 : size);
      });
      if (marks) c.svg.append(draw('g', { class: `${CLASSES[word]}${faded ? ' faded' : ''}` },
        draw('path', { class: 'range', d: lines, 'stroke-width': Math.min(1.5, size / 2) }), draw('path', { class: 'mark', d: marks })));
    });
    const nearest = event => {
      const rank = Math.round((at(event, c.svg)[0] - c.left) / (c.right - c.left) * (order.length + 1)) - 1;
      return order[Math.min(Math.max(rank, 0), order.length - 1)];
    };
    filled(c.svg, { style: { cursor: 'pointer' }, onpointermove: event => say(event, told(way, nearest(event))),
      onpointerleave: quiet, onclick: event => choose(data.owners[nearest(event)]) }, []);
    steps(c.svg, order.length, (i, event) => say(event, told(way, order[i])));
    figure.append(c.svg);
  }
};

const hue = way => way.hue === null ? 'var(--soft)' : `var(--c${way.hue % 8})`;
const DASHES = ['', '6 4', '2 3'];
const dash = way => way.hue === null ? DASHES[1] : DASHES[Math.floor(way.hue / 8) % 3];

const swatch = way => make('span', { class: `swatch ${dash(way) === DASHES[1] ? 'dashed' : dash(way) ? 'dotted' : ''}`,
  style: { '--hue': hue(way) } });

// The score against what it costs: bytes and seconds.
const costs = (box, ways) => {
  const bar = data.ways.find(way => way.bar);
  for (const [key, title] of [['megabytes', 'MB sent and received in one run'], ['seconds', 'seconds of training']]) {
    const shown = ways.filter(way => known(way[key]) && known(way.score));
    if (!shown.length) continue;
    const figure = make('figure');
    box.append(figure);
    const [low, high] = around([...shown.map(way => way.score), bar.score].filter(known), 0.14);
    const most = Math.max(...shown.map(way => way[key])) || 1;
    const c = chart(figure, 250, { low: -0.03 * most, high: most * 1.08, title },
      { low, high, title: data.measure.heading }, `Score against ${title}`);
    // Names stand clear of all points, of the bar's line, and of its name, which is above the line or below.
    const used = shown.map(way => [c.px(way[key]) - 6, c.px(way[key]) + 6, c.py(way.score)]);
    if (known(bar.score)) {
      const line = c.py(bar.score), title = `the bar: ${bar.name}`, long = 6.8 * title.length;
      const free = ([from, height]) => !used.some(([a, b, at]) => from < b && from + long > a && Math.abs(height - at) < 12);
      const sides = [1, 0.75, 0.5, 0.25, 0].flatMap(share => [-8, 9].map(step => [c.left + share * (c.right - long - c.left), line + step]));
      const [from, height] = sides.find(free) || sides[0];
      c.svg.append(draw('line', { class: 'zero', x1: c.left, x2: c.right, y1: line, y2: line }),
        draw('text', { class: 'soft', x: from + long, y: height + 4, 'text-anchor': 'end', text: title }));
      used.push([c.left, c.right, line], [from, from + long, height]);
    }
    for (const way of [...shown].sort((a, b) => b.score - a.score)) {
      // The name stands beside its point, or above or below, wherever nothing else stands.
      const x = c.px(way[key]), y = c.py(way.score), long = 7 * way.name.length;
      const places = [[x + 9, y], [x - 9 - long, y], [x - long / 2, y - 14], [x - long / 2, y + 14],
        [x + 6, y - 13], [x - 6 - long, y - 13], [x + 6, y + 13], [x - 6 - long, y + 13]];
      const free = ([a, b]) => a >= c.left - 8 && a + long <= c.right + 12 && !used.some(([from, to, at]) =>
        a < to && a + long > from && Math.abs(b - at) < 12);
      const [from, height] = places.find(free) || places[0];
      used.push([from, from + long, height]);
      const said = `${way.name}\n${data.measure.heading}: ${number(way.score)}\n${title}: ${short(way[key])}`;
      c.svg.append(draw('g', { class: 'point', onpointermove: event => say(event, said), onpointerleave: quiet },
        draw('circle', { cx: x, cy: y, r: 12, fill: 'transparent' }), draw('circle', { cx: x, cy: y, r: 5, fill: hue(way) }),
        draw('text', { x: from, y: height + 4, text: way.name })));
    }
    figure.append(c.svg);
  }
};

// How training went: the mean over the chosen owners, round by round.
const curve = (line, match) => {
  if (match.length === data.owners.length) return line.mean;
  return line.rounds.map((_, i) => mean(match.map(k => line.owners[k][i]).filter(known)));
};
const curves = (box, ways, match) => {
  const [first, end] = state.zoom || [0, Infinity];
  const lines = ways.map(way => [way, data.curves.lines[way.name]]).filter(([, line]) => line && line.rounds.length);
  const values = lines.map(([, line]) => curve(line, match));
  const inside = round => round >= first && round <= end;
  const kept = (line, list) => list.filter((v, i) => known(v) && inside(line.rounds[i]));
  const seen = lines.flatMap(([, line], n) => kept(line, values[n]));
  if (!seen.length) {
    box.append(make('p', { class: 'soft', text: 'Nothing to draw yet: choose a method that was trained, or other owners.' }));
    return;
  }
  const whole = match.length === data.owners.length;
  const banded = whole && lines.length <= 2; // more bands would hide each other
  const bands = banded ? lines.flatMap(([, line]) => [...kept(line, line.low), ...kept(line, line.high)]) : [];
  const figure = make('figure', { class: 'alone' }, make('ul', { class: 'lines' },
    ...lines.map(([way]) => make('li', {}, swatch(way), way.name))));
  box.append(figure);
  const reach = [...seen, ...bands], log = state.log && Math.min(...reach) > 0;
  const [low, high] = log ? around(reach.map(Math.log10)).map(v => 10 ** v) : around(reach);
  const rounds = [...new Set(lines.flatMap(([, line]) => line.rounds.filter(inside)))].sort((a, b) => a - b);
  const last = rounds.at(-1);
  const who = whole ? `mean over ${data.owners.length.toLocaleString('en')} owners` : match.length === 1 ? data.owners[match[0]] :
    `mean over ${match.length.toLocaleString('en')} of ${data.owners.length.toLocaleString('en')} owners`;
  const c = chart(figure, 320, { low: first, high: Math.max(last, first + 1), title: 'round', whole: true }, { low, high, log, title:
    `${data.curves.what}, ${data.owners.length === 1 ? data.owners[0] : who}` }, `${data.curves.what} by round, ${who}`);
  lines.forEach(([way, line], n) => {
    const points = line.rounds.flatMap((round, i) => known(values[n][i]) && inside(round) ? [[round, values[n][i], i]] : []);
    if (!points.length) return;
    if (banded && points.length > 1) {
      const up = points.map(([r, , i]) => `${c.px(r).toFixed(1)} ${c.py(line.high[i]).toFixed(1)}`);
      const down = points.map(([r, , i]) => `${c.px(r).toFixed(1)} ${c.py(line.low[i]).toFixed(1)}`).reverse();
      c.svg.append(draw('path', { d: `M${[...up, ...down].join('L')}Z`, fill: hue(way), opacity: 0.14 }));
    }
    const d = 'M' + points.map(([r, v]) => `${c.px(r).toFixed(1)} ${c.py(v).toFixed(1)}`).join('L');
    c.svg.append(draw('path', { class: 'line', d, fill: 'none', stroke: hue(way), 'stroke-width': 2,
      'stroke-dasharray': dash(way) }));
    const dots = banded ? line.chosen.filter(([r]) => inside(r)) : points.length === 1 ? [points[0]] : [];
    for (const [r, v] of dots) c.svg.append(draw('circle', { cx: c.px(r), cy: c.py(v), r: 4, fill: hue(way) }));
  });
  const guide = draw('line', { class: 'guide', y1: c.top, y2: c.bottom, visibility: 'hidden' });
  const picked = draw('rect', { class: 'picked', y: c.top, height: c.bottom - c.top, width: 0 });
  c.svg.append(guide, picked);
  const show = (round, event) => {
    const said = lines.flatMap(([way, line], n) => {
      const i = line.rounds.indexOf(round);
      return i >= 0 && known(values[n][i]) ? [`${way.name}: ${short(values[n][i])}`] : [];
    });
    filled(guide, { x1: c.px(round), x2: c.px(round), visibility: 'visible' }, []);
    say(event, [`round ${round}`, ...said].join('\n'));
  };
  const nearest = event => {
    const wanted = first + (at(event, c.svg)[0] - c.left) / (c.right - c.left) * (Math.max(last, first + 1) - first);
    return rounds.reduce((a, b) => Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a);
  };
  let from = null; // the round at which the mouse went down: what it is drawn over is shown alone
  filled(c.svg, { onpointerdown: event => { if (event.pointerType === 'mouse') from = nearest(event); },
    onpointermove: event => {
      const to = nearest(event), [left, right] = [c.px(Math.min(from ?? to, to)), c.px(Math.max(from ?? to, to))];
      filled(picked, { x: left, width: right - left }, []);
      show(to, event);
    }, onpointerup: event => {
      const ends = [from, nearest(event)].sort((a, b) => a - b);
      if (from !== null && ends[1] > ends[0]) { state.zoom = ends; quiet(); refresh(); }
      from = null;
    }, onpointerleave: () => { quiet(); from = null; picked.setAttribute('width', 0); guide.setAttribute('visibility', 'hidden'); } }, []);
  steps(c.svg, rounds.length, (i, event) => show(rounds[i], event));
  figure.append(c.svg);
};

// ---- The table of every verdict

const place = value => `${(100 * (clamp(value) - data.axis[0]) / (data.axis[1] - data.axis[0])).toFixed(1)}%`;
const drawnSpan = (way, k) => make('span', { class: `span${(way.low[k] ?? -Infinity) < data.axis[0] ? ' below' : ''}${
  (way.high[k] ?? Infinity) > data.axis[1] ? ' above' : ''}`, style: { '--a': place(way.low[k] ?? data.axis[0]),
  '--b': place(way.high[k] ?? data.axis[1]), '--g': place(way.gains[k]), '--z': place(0) } },
  make('i'), make('u'));
const bar = data.ways.find(way => way.bar);
const percent = data.measure.percent ? ', %' : '';
const COLUMNS = [ // heading, value to sort by and to save, cell
  ['Owner', ([, k]) => data.owners[k], ([, k]) => make('button', { class: 'plain', type: 'button', text: data.owners[k],
    title: 'Show this owner alone, or all again', onclick: () => choose(data.owners[k]) })],
  ['Way to train', ([way]) => way.name],
  ['Verdict', ([way, k]) => known(way.verdicts[k]) ? data.words[way.verdicts[k]] : 'not judged',
    ([way, k]) => make('span', { class: 'word', text: COLUMNS[2][1]([way, k]) })],
  [`Gain${data.measure.unit}`, ([way, k]) => way.gains[k], ([way, k]) => number(way.gains[k], true)],
  [`${data.level} interval${data.measure.unit}`, ([way, k]) => way.low[k], ([way, k]) => known(way.gains[k]) ?
    make('span', {}, drawnSpan(way, k), make('small', { text: span(way.low[k], way.high[k]) })) : NONE],
  [`Bar${percent}`, ([, k]) => bar.scores[k], ([, k]) => number(bar.scores[k])],
  [`This way${percent}`, ([way, k]) => way.scores[k], ([way, k]) => number(way.scores[k])],
  [data.rows[0], ([, k]) => data.train[k], ([, k]) => data.train[k].toLocaleString('en')],
  [data.rows[1], ([, k]) => data.test[k], ([, k]) => data.test[k].toLocaleString('en')],
  ['Why', ([way, k]) => way.why[k]],
];
// A heading that is a button, which screen readers tell and the keyboard reaches.
const sortable = (head, sort, order) => {
  const button = make('button', { class: 'head', type: 'button', onclick: sort }, ...head.childNodes);
  return filled(head, { 'aria-sort': order }, [button]);
};
const compare = (a, b) => !known(a) ? 1 : !known(b) ? -1 : typeof a === 'string' ?
  a.localeCompare(b, 'en', { numeric: true }) : a - b;
const verdictRows = match => judged.filter(way => state.ways.has(way.name)).flatMap(way => match.map(k => [way, k]))
  .filter(([way, k]) => !known(way.verdicts[k]) ? state.words.size === data.words.length :
    state.words.has(data.words[way.verdicts[k]]));
const verdicts = (box, match) => {
  const rows = verdictRows(match), value = COLUMNS[state.sort][1];
  const order = rows.map(row => [value(row), row]).sort(([a], [b]) => !known(a) || !known(b) ? compare(a, b) :
    compare(a, b) * (state.down ? -1 : 1)).map(([, row]) => row);
  const sort = i => { state.down = state.sort === i ? !state.down : i === 3; state.sort = i; refresh(); };
  const heads = COLUMNS.map(([title], i) => sortable(make('th', { scope: 'col', text: title }), () => sort(i),
    state.sort !== i ? 'none' : state.down ? 'descending' : 'ascending'));
  const body = make('tbody');
  for (const row of state.whole ? order : order.slice(0, MOST)) {
    const word = row[0].verdicts[row[1]];
    body.append(make('tr', { class: known(word) ? CLASSES[word] : '' }, ...COLUMNS.map(([title, value, cell], i) => {
      const inside = cell ? cell(row) : value(row);
      return make('td', i === 0 || i === 2 ? {} : { 'data-label': title }, inside);
    })));
  }
  const focus = document.activeElement.closest('.verdicts th')?.cellIndex;
  const table = make('table', { class: 'verdicts stacked' }, make('thead', {}, make('tr', {}, ...heads)), body);
  const rest = order.length - MOST;
  const cut = rest > 0 && !state.whole ? [make('p', { class: 'soft', text:
    `The first ${MOST} of ${order.length.toLocaleString('en')}, by ${COLUMNS[state.sort][0].toLowerCase()}.` })] : [];
  const more = rest > 0 ? [make('button', { class: 'more', type: 'button', onclick: () => { state.whole = !state.whole; refresh(); },
    text: state.whole ? `Show the first ${MOST}` : `Show all ${order.length.toLocaleString('en')}` })] : [];
  box.replaceChildren(make('div', { class: 'wide' }, table), ...cut, ...more, csvButton('verdicts', () => [
    ['owner', 'way', 'kind', 'verdict', 'gain', 'lower', 'upper', 'bar', 'score', 'train rows', 'test rows', 'why'],
    ...order.map(([way, k]) => [data.owners[k], way.name, way.kind, COLUMNS[2][1]([way, k]), way.gains[k], way.low[k],
      way.high[k], bar.scores[k], way.scores[k], data.train[k], data.test[k], way.why[k]])]));
  if (known(focus)) heads[focus].firstChild.focus();
};

// ---- Files

// A text that a spreadsheet would take for a formula gets an apostrophe before it.
const cell = value => {
  if (!known(value)) return '';
  if (typeof value === 'number') return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) && isNaN(Number(value)) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
const save = (name, rows) => {
  const text = rows.map(row => row.map(cell).join(',')).join('\r\n') + '\r\n';
  const link = make('a', { href: URL.createObjectURL(new Blob(['\ufeff', text], { type: 'text/csv' })), download: `${name}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const csvButton = (name, rows) => make('button', { class: 'csv', type: 'button', text: 'Download CSV', 'data-csv': name,
  onclick: () => save(name, rows()) });

// ---- Tables that are part of the page

const plain = text => text.replace('−', '-').trim();
const numeric = text => { const n = parseFloat(plain(text).replaceAll(',', '')); return isNaN(n) ? null : n; };
const text = td => td.dataset.value ?? td.textContent;
all('.wide > table').forEach(table => {
  const heads = all('thead th', table);
  heads.forEach((head, i) => {
    const sort = () => {
      const down = head.ariaSort === 'ascending';
      heads.forEach(other => other.ariaSort = 'none');
      head.ariaSort = down ? 'descending' : 'ascending';
      for (const body of table.tBodies) {
        const rows = all('tr:not(.group)', body).map(row => [text(row.cells[i]), row]);
        const numbers = rows.every(([value]) => value === NONE || numeric(value) !== null);
        const key = value => numbers ? numeric(value) : value;
        rows.sort(([a], [b]) => a === NONE || b === NONE ? (a === NONE) - (b === NONE) :
          compare(key(a), key(b)) * (down ? -1 : 1)).forEach(([, row]) => body.append(row));
      }
    };
    sortable(head, sort, 'none');
  });
  const name = table.dataset.csv;
  if (name) table.parentNode.after(csvButton(name, () => [heads.map(head => head.dataset.csv ?? head.textContent),
    ...all('tbody tr:not(.group)', table).map(row => [...row.cells].map(td => td.dataset.csv ?? plain(text(td))))]));
});

// ---- The controls, and everything that follows them

const pressed = (label, set, name, inside = []) => make('button', { type: 'button', 'aria-pressed': set.has(name), text: '',
  'data-name': name, onclick: event => {
    if (!set.delete(name)) set.add(name);
    event.currentTarget.setAttribute('aria-pressed', set.has(name));
    refresh();
  } }, ...inside, label);
const boxes = { gains: all('[data-chart=gains]'), costs: all('[data-chart=costs]'), curves: all('[data-chart=curves]') };
const long = document.getElementById('verdicts');
const search = make('input', { type: 'search', placeholder: 'Find an owner', 'aria-label': 'Find an owner',
  list: 'owners', oninput: event => { state.wanted = event.target.value; state.whole = false; refresh(); } });
const note = make('span', { class: 'note', role: 'status' });
const controls = place => {
  const parts = [];
  if (data.owners.length > 1) parts.push(search,
    make('datalist', { id: 'owners' }, ...data.owners.map(name => make('option', { value: name }))));
  if (choosable.length > 1) parts.push(make('div', { role: 'group', 'aria-label': 'Ways to train' },
    ...choosable.map(way => pressed(way.name, state.ways, way.name, [swatch(way)]))));
  if (judged.length && data.owners.length > 1) parts.push(make('div', { role: 'group', 'aria-label': 'Verdicts' },
    ...data.words.map((word, i) => pressed(make('span', { class: 'word', text: word }), state.words, word))));
  if (judged.length && data.owners.length > 1) all('.key').forEach(key => key.classList.add('paper')); // the buttons show it
  if (long) parts.push(make('label', { class: 'sort', text: 'Sort by ' }, make('select', { onchange: event => {
    state.sort = Number(event.target.value); state.down = state.sort === 3; refresh(); } },
    ...COLUMNS.map(([title], i) => make('option', { value: i, text: title, ...(i === state.sort ? { selected: '' } : {}) })))));
  parts.push(note, make('button', { type: 'button', text: 'Show all', onclick: () => {
    state.wanted = ''; choosable.forEach(way => state.ways.add(way.name)); data.words.forEach(word => state.words.add(word));
    all('.controls [aria-pressed]').forEach(button => button.setAttribute('aria-pressed', true));
    refresh();
  } }));
  place.classList.add('controls', 'stay');
  place.append(...parts);
  all('.word', place).forEach((word, i) => word.classList.add(CLASSES[i]));
};

const refresh = () => {
  const match = matching(), chosen = new Set(match.map(k => data.owners[k]));
  const ways = data.ways.filter(way => state.ways.has(way.name));
  if (search.value !== state.wanted) search.value = state.wanted;
  const of = (n, total, what) => `${n.toLocaleString('en')} of ${total.toLocaleString('en')} ${what}`;
  note.textContent = 'Shown: ' + [of(match.length, data.owners.length, data.owners.length === 1 ? 'owner' : 'owners'),
    of(choosable.filter(way => state.ways.has(way.name)).length, choosable.length, 'ways to train'),
    ...(state.words.size < data.words.length ? [of(state.words.size, data.words.length, 'verdicts')] : [])].join(', ');
  all('tr[data-owner]').forEach(row => row.hidden = !chosen.has(row.dataset.owner));
  all('[data-way]').forEach(part => part.hidden = !state.ways.has(part.dataset.way));
  boxes.gains.forEach(box => { box.replaceChildren(); gains(box, ways.filter(way => way.gains && way.kind === 'method'), match); });
  boxes.costs.forEach(box => { box.replaceChildren(); costs(box, ways); });
  boxes.curves.forEach(box => { box.replaceChildren(); curves(box, ways, match); });
  if (long) verdicts(long, match);
  logarithmic.setAttribute('aria-pressed', state.log);
  unzoom.hidden = !state.zoom;
  hint.hidden = Boolean(state.zoom);
  keep();
};
recall();
all('[data-controls]').forEach(controls);
const logarithmic = make('button', { type: 'button', class: 'small', text: 'Logarithmic',
  onclick: () => { state.log = !state.log; refresh(); } });
const unzoom = make('button', { type: 'button', class: 'small', text: 'All rounds', onclick: () => { state.zoom = null; refresh(); } });
const hint = make('span', { class: 'soft mouse', text: 'Drag over some rounds to enlarge them.' });
boxes.curves.forEach(box => box.before(make('div', { class: 'tools' },
  ...(data.curves.what.includes('loss') ? [logarithmic] : []), unzoom, hint)));
boxes.curves.forEach(box => box.after(csvButton('curves', () => [['way', 'owner', 'round', data.curves.what],
  ...data.ways.filter(way => state.ways.has(way.name) && data.curves.lines[way.name]).flatMap(way => {
    const line = data.curves.lines[way.name];
    return [...line.rounds.map((round, i) => [way.name, 'mean over owners', round, line.mean[i]]),
      ...matching().flatMap(k => line.rounds.map((round, i) => [way.name, data.owners[k], round, line.owners[k][i]]))];
  })])));
refresh();
let width = innerWidth;
addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; refresh(); } });
all('details').forEach(part => part.addEventListener('toggle', () => { if (part.open && part.querySelector('[data-chart]')) refresh(); }));
// On paper everything is unfolded, unless there are so many owners that it would fill a book.
addEventListener('beforeprint', () => { if (data.owners.length <= 60) all('details').forEach(part => part.open = true); });

// ---- While a run is going: a new page as soon as there is news

if (data.live) setInterval(async () => {
  try {
    const news = await (await fetch('state', { cache: 'no-store' })).text();
    if (news !== data.live) { keep(); location.reload(); }
  } catch { document.title = 'Stopped: ' + document.title.replace(/^Stopped: /, ''); }
}, 2000);
