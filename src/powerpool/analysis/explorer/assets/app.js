"use strict";
// The controls, plots and texts of the page. All numbers come from Formulas.

(() => {
  const POINTS = 500; // quantiles of a Beta spectrum
  const BINS = 40;
  const STEPS = 1000; // of a slider
  const SMALLEST = 1e-6; // where logarithmic axes begin

  // Limits of number fields, and of sliders, which cover the useful range; both logarithmic.
  const PARAMETERS = {
    t: { typed: [1e-8, 1e3], slider: [1e-5, 10] },
    eta: { typed: [1, 1e8], slider: [1, 1e5] },
    gamma: { typed: [1e-8, 3e3], slider: [2e-5, 30] },
    etaPrime: { typed: [1e-3, 2e8], slider: [0.1, 2e5] },
    gammaPrime: { typed: [1e-3, 1e8], slider: [0.1, 1e5] },
    a: { typed: [0.1, 100], slider: [0.1, 100] },
    b: { typed: [0.1, 100], slider: [0.1, 100] },
  };
  const SIGNS = { t: "t", eta: "η", gamma: "γ", etaPrime: "η′", gammaPrime: "γ′", a: "a", b: "b" };
  const LINKED = ["t", "eta", "gamma", "etaPrime"];
  const CURVES = {
    maxexp: { label: "MaxExp", parameter: "eta", dash: "10px,3px", signed: true },
    gamma: { label: "Gamma", parameter: "gamma", dash: "dash", signed: false },
    sigme: { label: "SigmE", parameter: "etaPrime", dash: "dashdot", signed: true },
    asinhe: { label: "AsinhE", parameter: "gammaPrime", dash: "solid", signed: true },
    hdp: { label: "HDP", parameter: "t", dash: "dot", signed: false },
    fahdp: { label: "FAHDP", parameter: "t", dash: "solid", signed: false },
  };
  // The value of a parameter whose link leads out of its range.
  const EDGE = {
    t: Formulas.tOfEta(1),
    eta: 1,
    gamma: Formulas.gammaOfT(Formulas.tOfEta(1)),
    etaPrime: Formulas.etaPrimeOfEta(1),
  };

  const run = JSON.parse(document.getElementById("run-data").textContent);
  const state = {
    curve: "maxexp",
    signed: false,
    rounding: "ceil",
    moved: { name: "eta", value: 50 }, // the linked parameter that was changed last; the others follow
    gammaPrime: 50,
    companions: true,
    source: "beta",
    a: 2,
    b: 10,
    axis: "linear",
    message: "",
  };

  const element = (id) => document.getElementById(id);
  const form = element("controls");
  const own = () => CURVES[state.curve].parameter;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function shown(value, digits = 4) {
    if (value === null) return "–";
    if (!Number.isFinite(value)) return "∞";
    const rounded = Number(value.toPrecision(digits));
    const size = Math.abs(rounded);
    if (rounded !== 0 && (size >= 1e6 || size < 1e-4)) {
      const [mantissa, exponent] = rounded.toExponential().split("e");
      const raised = [...String(Number(exponent))]
        .map((one) => (one === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(one)]))
        .join("");
      return `${mantissa}·10${raised}`;
    }
    return String(rounded);
  }

  // ---- values derived from the state -------------------------------------------------------------------------------

  const current = () => Formulas.linked(state.moved.name, state.moved.value);

  function parameterOf(name, values) {
    return name === "asinhe" ? state.gammaPrime : values[CURVES[name].parameter];
  }

  // A curve with its parameter: value and slope as functions of p.
  function bound(name, values) {
    const theta = parameterOf(name, values);
    const formulas = Formulas.curve(name, { signed: state.signed, rounding: state.rounding });
    return { theta, value: (p) => formulas.value(p, theta), slope: (p) => formulas.slope(p, theta) };
  }

  // Points of the x axis, dense near 0, where curves are steep.
  const POSITIVE = (() => {
    const points = new Set([0]);
    for (let i = 1; i <= 200; i += 1) points.add(i / 200);
    for (let i = 0; i < 200; i += 1) points.add(SMALLEST ** (1 - i / 200));
    return [...points].sort((x, y) => x - y);
  })();
  const axisPoints = () =>
    state.signed
      ? [
          ...POSITIVE.slice(1)
            .reverse()
            .map((p) => -p),
          ...POSITIVE,
        ]
      : POSITIVE;

  const quantiles = { key: "", points: null };
  function betaPoints() {
    const key = `${state.a} ${state.b}`;
    if (quantiles.key !== key)
      Object.assign(quantiles, { key, points: Formulas.betaQuantiles(state.a, state.b, POINTS) });
    return quantiles.points;
  }

  // Lists of eigenvalues, or entries, one for each sample; each with the largest magnitude first.
  function samples() {
    if (state.source === "run") return run.spectra;
    const falling = Array.from(betaPoints()).reverse();
    return [state.signed ? falling.flatMap((p) => [p, -p]) : falling];
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // ---- plots --------------------------------------------------------------------------------------------------------

  function layout(x, y, more = {}) {
    const axis = (settings) => ({
      gridcolor: colour("grid"),
      linecolor: colour("line"),
      zerolinecolor: colour("line"),
      automargin: true,
      tickfont: { size: 11 },
      ...settings,
      title: { text: settings.title, standoff: 8, font: { size: 12 } },
    });
    return {
      margin: { l: 52, r: 12, t: 8, b: 42 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("text") },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
      hoverlabel: { font: { family: "system-ui, sans-serif" } },
      xaxis: axis(x),
      yaxis: axis(y),
      ...more,
    };
  }

  // Plotly draws powers of ten larger than other labels.
  const LOGARITHMIC = { type: "log", exponentformat: "power", dtick: 1, tickfont: { size: 9 } };
  const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false };

  function draw(id, traces, settings, description) {
    Plotly.react(id, traces, settings, CONFIG);
    element(id).setAttribute("aria-label", description);
  }

  function line(name, label, x, y, main) {
    return {
      type: "scatter",
      mode: "lines",
      name: label,
      x,
      y,
      legendrank: main ? 1 : 1000,
      line: { color: colour(name), width: main ? 3.2 : 1.6, dash: main ? "solid" : CURVES[name].dash, simplify: false },
      hovertemplate: "p = %{x:.4g}<br>%{y:.4g}<extra>%{fullData.name}</extra>",
    };
  }

  const labelOf = (name, theta) => `${CURVES[name].label}, ${SIGNS[CURVES[name].parameter]} = ${shown(theta, 3)}`;

  // The selected curve last, on top of the others.
  function drawnCurves(values) {
    const others = ["maxexp", "gamma", "sigme", "hdp"].filter(
      (name) =>
        state.companions &&
        state.curve !== "asinhe" &&
        name !== state.curve &&
        values[CURVES[name].parameter] !== null &&
        (!state.signed || CURVES[name].signed),
    );
    return [...others, state.curve];
  }

  function drawCurves(values) {
    const x = axisPoints();
    const names = drawnCurves(values);
    const profiles = [];
    const slopes = [];
    let top = 1;
    let steepest = 1;
    let flattest = 1;
    for (const name of names) {
      const { theta, value, slope } = bound(name, values);
      const isMain = name === state.curve;
      const heights = x.map(value);
      // A logarithmic axis cannot show 0 and infinity.
      const rates = x.map(slope).map((rate) => (rate > 1e-300 && Number.isFinite(rate) ? rate : null));
      top = Math.max(top, ...heights);
      if (isMain) {
        const finite = rates.filter((rate, i) => rate !== null && Math.abs(x[i]) >= 1e-4);
        steepest = Math.max(steepest, ...finite);
        flattest = Math.min(flattest, ...finite);
      }
      profiles.push(line(name, labelOf(name, theta), x, heights, isMain));
      slopes.push(line(name, labelOf(name, theta), x, rates, isMain));
    }
    const ends = state.signed ? [-1, 1] : [0, 1];
    const plain = {
      ...line(state.curve, "no curve", ends, ends, false),
      line: { color: colour("before"), width: 1.2, dash: "2px,3px" },
      hoverinfo: "skip",
      hovertemplate: null,
      showlegend: false,
    };
    const point = state.signed ? "entry p (share of the trace)" : "eigenvalue λ (share of the trace)";
    const label = `${CURVES[state.curve].label} with ${SIGNS[own()]} = ${shown(parameterOf(state.curve, values))}`;
    const limits = [state.signed ? -1.03 * top : -0.02 * top, 1.03 * top];
    const xs = [state.signed ? -1.02 : -0.01, 1.01];
    draw(
      "profile",
      [plain, ...profiles],
      layout({ title: point, range: xs }, { title: "g(p)", range: limits }),
      `Profile of ${label}`,
    );
    const high = Math.log10(steepest) + 0.3;
    const low = Math.min(high - 2, Math.max(-3, Math.log10(flattest) - 0.3));
    draw(
      "slope",
      slopes,
      layout({ title: point, range: xs }, { title: "g′(p)", range: [low, high], ...LOGARITHMIC }),
      `Slope of ${label}`,
    );
  }

  function edges(top) {
    const low = state.signed ? -top : 0;
    if (state.axis === "log" && !state.signed) {
      const first = Math.log10(SMALLEST);
      const last = Math.log10(top);
      return Array.from({ length: BINS + 1 }, (_, i) => 10 ** (first + ((last - first) * i) / BINS));
    }
    return Array.from({ length: BINS + 1 }, (_, i) => low + ((top - low) * i) / BINS);
  }

  function bars(label, name, cuts, parts) {
    // On a logarithmic axis plotly takes bar widths in linear units, so the outline is drawn as a staircase instead.
    const x = [];
    const y = [];
    parts.forEach((part, i) => {
      x.push(cuts[i], cuts[i + 1]);
      y.push(part, part);
    });
    const tone = colour(name);
    return {
      type: "scatter",
      mode: "lines",
      name: label,
      x,
      y,
      line: { color: tone, width: name === "before" ? 1.2 : 2, dash: name === "before" ? "dot" : "solid" },
      fill: "tozeroy",
      fillcolor: `${tone}${name === "before" ? "50" : "48"}`,
      hovertemplate: "%{y:.2f} % at %{x:.3g}<extra>%{fullData.name}</extra>",
    };
  }

  function drawSpectra(values, lists, after) {
    const { value } = bound(state.curve, values);
    const top = Math.max(1, value(1));
    const cuts = edges(top);
    const what = state.signed ? "entry" : "eigenvalue";
    const many = state.signed ? "entries" : "eigenvalues";
    const isLog = state.axis === "log";
    const before = Formulas.histogram(lists.flat(), cuts);
    const pushed = Formulas.histogram(after.flat(), cuts);
    // One bin may contain nearly all values: keep the others visible.
    const ceiling = Math.min(Math.max(...before, ...pushed), Math.max(12, 3 * Math.max(...pushed)));
    draw(
      "spectrum",
      [bars("before", "before", cuts, before), bars(`after ${CURVES[state.curve].label}`, state.curve, cuts, pushed)],
      layout(
        isLog && !state.signed
          ? {
              title: `${what} (smaller ones are in the first bin)`,
              range: [Math.log10(SMALLEST), Math.log10(top) + 0.02],
              ...LOGARITHMIC,
            }
          : { title: what, range: [state.signed ? -1.02 * top : -0.01 * top, 1.01 * top] },
        { title: `${many} in the bin (%)`, range: [0, 1.06 * ceiling] },
      ),
      `Histogram of ${many} before and after the curve`,
    );
    const count = lists[0].length;
    const places = Array.from({ length: count }, (_, i) => i + 1);
    const falling = (spectra) => {
      const average = places.map((_, i) => mean(spectra.map((one) => Math.abs(one[i]))));
      const largest = average[0];
      return average.map((one) => (isLog && !(one / largest > 1e-12) ? null : one / (largest || 1)));
    };
    const order = (label, name, y, dash) => ({
      ...line(state.curve, label, places, y, true),
      line: { color: colour(name), width: name === "before" ? 2 : 3, dash },
      hovertemplate: "rank %{x}: %{y:.4g} of the largest<extra>%{fullData.name}</extra>",
    });
    draw(
      "sorted",
      [
        order("before", "before", falling(lists), "dot"),
        order(`after ${CURVES[state.curve].label}`, state.curve, falling(after), "solid"),
      ],
      layout(
        { title: `rank of the ${what}`, range: [0, count + 1] },
        isLog
          ? { title: "relative to the largest", range: [Math.log10(SMALLEST), 0.1], ...LOGARITHMIC }
          : { title: "relative to the largest", range: [0, 1.04] },
      ),
      `Magnitudes of ${many} in descending order, before and after the curve`,
    );
  }

  // ---- numbers and controls -----------------------------------------------------------------------------------------

  function timeNote(values, notes) {
    const eta = shown(values.eta, 3);
    switch (state.curve) {
      case "asinhe":
        return "no theorem links AsinhE to a time";
      case "hdp":
        return "the parameter of the curve";
      case "fahdp":
        return values.t === null
          ? notes.t
          : `of the HDP that it approximates, with exponent h = ${shown(Formulas.fahdpExponent(values.t, state.rounding))}`;
      case "gamma":
        return values.t === null ? notes.t : "its HDP touches Gamma from below, at λ = 1/e";
      case "sigme":
        return values.t === null ? notes.t : `through MaxExp with η = ${eta}, which intersects SigmE`;
      default:
        return values.t === null ? notes.t : "its HDP stays below MaxExp on [0, 1]";
    }
  }

  function slopeAtZero(values) {
    const { slope } = bound(state.curve, values);
    return slope(0);
  }

  function showResults(values, notes, lists, after) {
    element("time").textContent = state.curve === "asinhe" || values.t === null ? "–" : `t = ${shown(values.t)}`;
    element("time-note").textContent = timeNote(values, notes);
    const [from, to] = [lists, after].map((spectra) => mean(spectra.map(Formulas.effectiveRank)));
    const count = lists[0].length;
    element("rank-title").textContent = state.signed ? "Effective number of entries" : "Effective rank";
    element("rank").textContent = `${shown(from, 3)} → ${shown(to, 3)}`;
    const of =
      state.source === "run"
        ? `mean of ${lists.length} samples with ${count} eigenvalues`
        : `of ${count} ${state.signed ? "entries" : "eigenvalues"}`;
    element("rank-note").textContent = to > 0 ? `${of}; exp of the entropy` : `${of}; the curve maps all to 0`;
    const slope = slopeAtZero(values);
    element("slope-zero").textContent = shown(slope);
    element("slope-note").textContent =
      slope === 0
        ? "flat: small values are suppressed"
        : slope > 1
          ? "small values are amplified"
          : slope === 1
            ? "small values are unchanged"
            : "small values are reduced";
  }

  // For screen readers: when a control is released, not at every step of a slider.
  function announce() {
    const spoken = (id) => element(id).textContent.replace(" → ", " to ");
    const ends = `Slope at 0: ${spoken("slope-zero")}`;
    element("status").textContent = `Time: ${spoken("time")}. ${spoken("rank-title")}: ${spoken("rank")}. ${ends}.`;
  }
  const announceSoon = () => requestAnimationFrame(announce); // after the drawing, which waits for the same frame

  const HINTS = {
    t: (moved) =>
      moved === "gamma"
        ? "t = γ/e: HDP touches Gamma from below"
        : "t = e/(e−1) · η^η/(η+1)^(η+1): HDP stays below MaxExp",
    eta: (moved) =>
      moved === "etaPrime"
        ? "intersects SigmE at its largest curvature, where g = 1/√3"
        : "η ≈ ½√(1 + 4/(t(e−1))²) − ½: MaxExp stays above HDP",
    gamma: () => "γ = e·t: touches HDP from above, at λ = 1/e",
    etaPrime: () => "intersects MaxExp where SigmE has its largest curvature, at g = 1/√3",
  };

  const position = (name, value) => {
    const [low, high] = PARAMETERS[name].slider;
    const clipped = Math.min(high, Math.max(low, value));
    return Math.round((STEPS * Math.log(clipped / low)) / Math.log(high / low));
  };
  const atPosition = (name, place) => {
    const [low, high] = PARAMETERS[name].slider;
    return Number((low * (high / low) ** (place / STEPS)).toPrecision(4));
  };

  function showParameter(name, value) {
    const number = element(`${name}-number`);
    const range = element(`${name}-range`);
    number.value = value === null ? "" : String(Number(value.toPrecision(5)));
    number.placeholder = "–";
    range.value = position(name, value ?? EDGE[name]);
    range.setAttribute("aria-valuetext", value === null ? "out of range" : shown(value));
    number.closest(".parameter").classList.toggle("out", value === null);
    number.closest(".parameter").classList.toggle("own", name === own());
  }

  function showControls(values, notes) {
    for (const name of LINKED) {
      showParameter(name, values[name]);
      const isMoved = name === state.moved.name;
      element(`${name}-hint`).textContent =
        notes[name] ?? (isMoved ? "set by you; the others follow" : HINTS[name](state.moved.name));
    }
    for (const name of ["gammaPrime", "a", "b"]) showParameter(name, state[name]);
    element("gammaPrime-hint").textContent = "No theorem of the paper links AsinhE with the other curves.";
    element("links").hidden = state.curve === "asinhe";
    element("unlinked").hidden = state.curve !== "asinhe";
    element("rounding-line").hidden = state.curve !== "fahdp";
    const isSigned = CURVES[state.curve].signed;
    form.elements.curve.value = state.curve;
    form.elements.signed.value = state.signed ? "yes" : "no";
    form.elements.signed[1].disabled = !isSigned;
    element("signed-note").textContent = isSigned ? "" : `${CURVES[state.curve].label} is defined for p ≥ 0 only.`;
    form.elements.rounding.value = state.rounding;
    form.elements.companions.checked = state.companions;
    form.elements.source.value = state.source;
    form.elements.source[1].disabled = state.signed;
    form.elements.axis.value = state.axis;
    form.elements.axis[1].disabled = state.signed;
    element("source-line").hidden = run === null;
    element("beta-box").hidden = state.source === "run";
    if (element("run-box")) element("run-box").hidden = state.source !== "run";
    const wanted = state.curve === "maxexp" && state.signed ? "maxexp-signed" : state.curve;
    for (const formula of document.querySelectorAll(".formula")) formula.hidden = formula.dataset.for !== wanted;
    element("message").textContent = state.message;
  }

  // ---- events -------------------------------------------------------------------------------------------------------

  function render() {
    const { values, notes } = current();
    const lists = samples();
    const { value } = bound(state.curve, values);
    const after = lists.map((one) => one.map(value));
    showControls(values, notes);
    showResults(values, notes, lists, after);
    drawCurves(values);
    drawSpectra(values, lists, after);
  }

  let waiting = false;
  function changed(message = "") {
    state.message = message;
    if (waiting) return;
    waiting = true; // at most one drawing for each frame of the screen
    requestAnimationFrame(() => {
      waiting = false;
      render();
    });
  }

  function setParameter(name, value) {
    if (LINKED.includes(name)) {
      state.moved = { name, value };
      changed(comeBack());
    } else {
      state[name] = value;
      changed();
    }
  }

  // If a link leads the selected curve out of its range, the curve stays at the end of the range.
  function comeBack() {
    const name = own();
    if (!LINKED.includes(name) || current().values[name] !== null) return "";
    const why = current().notes[name];
    state.moved = { name, value: EDGE[name] };
    return `${CURVES[state.curve].label} stays at ${SIGNS[name]} = ${shown(EDGE[name])}: ${why}.`;
  }

  function typed(name, text) {
    const [low, high] = PARAMETERS[name].typed;
    const value = Number(text);
    if (text.trim() === "" || !(value >= low && value <= high)) {
      changed(`${SIGNS[name]} must be a number from ${shown(low)} to ${shown(high)}.`);
      return;
    }
    setParameter(name, value);
  }

  function pick(name) {
    state.curve = name;
    if (!CURVES[name].signed) state.signed = false;
    changed(comeBack());
  }

  function useParameters({ curve, value, rounding }) {
    state.curve = curve;
    if (rounding) state.rounding = rounding;
    if (curve === "asinhe") state.gammaPrime = value;
    else state.moved = { name: CURVES[curve].parameter, value };
  }

  for (const name of Object.keys(PARAMETERS)) {
    const range = element(`${name}-range`);
    Object.assign(range, { min: 0, max: STEPS, step: 1 });
    range.addEventListener("input", () => setParameter(name, atPosition(name, Number(range.value))));
    element(`${name}-number`).addEventListener("change", (event) => typed(name, event.target.value));
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    const { name, value, checked } = event.target;
    if (name === "curve") pick(value);
    else if (name === "signed") {
      state.signed = value === "yes";
      if (state.signed) Object.assign(state, { source: "beta", axis: "linear" });
      changed();
    } else if (name === "source") {
      // Most eigenvalues of a run are small.
      Object.assign(state, { source: value, axis: value === "run" ? "log" : "linear" });
      changed();
    } else if (name === "companions") {
      state.companions = checked;
      changed();
    } else if (name === "rounding" || name === "axis") {
      state[name] = value;
      changed();
    }
    announceSoon();
  });

  if (run !== null) {
    Object.assign(state, { source: "run", axis: "log", signed: false });
    useParameters(run.start);
    element("use-own").addEventListener("click", () => {
      useParameters(run.start);
      changed(comeBack());
      announceSoon();
    });
    element("use-suggestion").addEventListener("click", () => {
      useParameters({ curve: state.curve, value: run.suggestion[state.curve] });
      changed(comeBack());
      announceSoon();
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed(state.message));
  render();
})();
