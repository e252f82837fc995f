"use strict";
// The formulas of the page: curves, links between their parameters, Beta spectra. They do not depend on the page. Each
// is the formula of the Python function named in its comment, in the same numerically stable form.

const Formulas = (() => {
  const E = Math.E;
  const LOG_RATIO = 1 - Math.log(E - 1); // log(e/(e-1))
  const ALIGNMENT = Math.log(Math.sqrt(3) + 2);
  const LOG_COMPLEMENT = Math.log1p(-1 / Math.sqrt(3));

  // ---- curves: value and slope of a point and the parameter (powerpool.curves) --------------------------------------

  // (1-d)^e, with a factor that corrects the round-off of 1 - d.
  function complementPower(d, exponent) {
    const rest = 1 - d;
    const lost = 1 - rest - d;
    return Math.pow(rest, exponent) * (rest === 0 ? 1 : Math.exp((exponent * lost) / rest));
  }

  const gamma = {
    value: (p, theta) => Math.pow(p, theta),
    slope: (p, theta) => theta * Math.pow(p, theta - 1),
  };

  const maxexp = {
    value: (p, theta) => -Math.expm1(theta * Math.log1p(-p)),
    slope: (p, theta) => theta * complementPower(p, theta - 1),
  };

  const signedMaxexp = {
    value: (p, theta) => (p < 0 ? -maxexp.value(-p, theta) : maxexp.value(p, theta)),
    slope: (p, theta) => maxexp.slope(Math.abs(p), theta),
  };

  const sigme = {
    value: (p, theta) => Math.tanh((theta * p) / 2),
    slope(p, theta) {
      const decay = Math.exp(-Math.abs(theta * p)); // cosh would overflow
      return (2 * theta * decay) / ((1 + decay) * (1 + decay));
    },
  };

  const asinhe = {
    value: (p, theta) => Math.asinh(theta * p),
    slope: (p, theta) => theta / Math.hypot(1, theta * p),
  };

  const hdp = {
    value: (p, theta) => (p > 0 ? Math.exp(-theta / p) : 0),
    slope(p, theta) {
      if (1e4 * p <= theta) return 0; // avoids inf * 0; e^-x is 0 there
      // In two factors: e^-q may be subnormal where the slope is not.
      const q = theta / p;
      const root = Math.exp(-q / 2);
      return ((q * root) / p) * root;
    },
  };

  // The exponent of FAHDP; "ceil" is upwards for t < 1 and downwards above.
  function fahdpExponent(t, rounding) {
    const exact = t < 1 ? etaTildeOfT(t) : t;
    if (rounding === "identity") return exact;
    if (rounding === "ceil") return t < 1 ? Math.ceil(exact) : Math.floor(exact);
    const low = Math.floor(exact); // halves go to the even neighbour
    if (exact - low === 0.5) return low % 2 === 0 ? low : low + 1;
    return Math.round(exact);
  }

  function fahdp(rounding) {
    const part = (t) => (t < 1 ? maxexp : gamma);
    return {
      value: (p, t) => Math.exp(-t) * part(t).value(p, fahdpExponent(t, rounding)),
      slope: (p, t) => Math.exp(-t) * part(t).slope(p, fahdpExponent(t, rounding)),
    };
  }

  // A curve by its name. `signed` is the form for entries of both signs.
  function curve(name, { signed = false, rounding = "ceil" } = {}) {
    if (name === "fahdp") return fahdp(rounding);
    if (name === "maxexp" && signed) return signedMaxexp;
    return { gamma, maxexp, sigme, asinhe, hdp }[name];
  }

  // ---- links (powerpool.theory.links) -------------------------------------------------------------------------------

  const tOfEta = (eta) => Math.exp(LOG_RATIO - eta * Math.log1p(1 / eta) - Math.log1p(eta));

  function etaOfT(t) {
    const x = 2 / (t * (E - 1)); // (sqrt(1 + x^2) - 1)/2 without its cancellation
    return (x / 2) * (x / (Math.hypot(x, 1) + 1));
  }

  const gammaOfT = (t) => E * t;
  const tOfGamma = (gammaValue) => gammaValue / E;
  const etaTildeOfT = (t) => 0.5 + Math.hypot(1 / (t * (E - 1)) - 1 / E, 0.5);
  const etaPrimeOfEta = (eta) => -ALIGNMENT / Math.expm1(LOG_COMPLEMENT / eta);
  const etaOfEtaPrime = (etaPrime) => LOG_COMPLEMENT / Math.log1p(-ALIGNMENT / etaPrime);

  // All parameters linked to one of them; null where no theorem applies, with the reason in notes.
  //   t, gamma -> eta by Eq. t_par;  eta -> t by Eq. eta_par;  eta <-> eta' by Remark maxexp_sigmoid
  function linked(name, value) {
    const notes = {};
    if (name === "etaPrime" && value <= ALIGNMENT) {
      const why = `needs η′ > ${ALIGNMENT.toFixed(3)}: below it, the largest curvature of SigmE is beyond p = 1`;
      return { values: { t: null, eta: null, gamma: null, etaPrime: value }, notes: { t: why, eta: why, gamma: why } };
    }
    let eta;
    let t;
    if (name === "eta" || name === "etaPrime") {
      eta = name === "eta" ? value : etaOfEtaPrime(value);
      t = tOfEta(eta);
    } else {
      t = name === "t" ? value : tOfGamma(value);
      eta = etaOfT(t);
    }
    const values = {
      t,
      eta,
      gamma: name === "gamma" ? value : gammaOfT(t),
      etaPrime: name === "etaPrime" ? value : etaPrimeOfEta(eta),
    };
    // Round-off of the last digit does not count.
    if (eta < 1 - 1e-12) {
      const found = Number(eta.toPrecision(3));
      const why = `the link gives η = ${found}, and MaxExp needs η ≥ 1`;
      if (name === "etaPrime") {
        // Below eta = 1 the formula of t has a value but is not a bound.
        Object.assign(values, { t: null, gamma: null });
        Object.assign(notes, { t: why, gamma: why });
      } else {
        values.etaPrime = null;
        notes.etaPrime = why;
      }
      values.eta = null;
      notes.eta = why;
    }
    return { values, notes };
  }

  // ---- Beta spectra -------------------------------------------------------------------------------------------------

  const LANCZOS = [
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
  ];

  // log Gamma(x) for x > 0, by the Lanczos approximation.
  function logGamma(x) {
    let sum = LANCZOS[0];
    for (let i = 1; i < LANCZOS.length; i += 1) sum += LANCZOS[i] / (x - 1 + i);
    const shifted = x + 6.5;
    return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(shifted) - shifted + Math.log(sum);
  }

  const logBeta = (a, b) => logGamma(a) + logGamma(b) - logGamma(a + b);

  // The continued fraction of the incomplete beta function, by Lentz's method; quick for x < (a+1)/(a+b+2).
  function betaFraction(x, a, b) {
    const floor = (v) => (Math.abs(v) < 1e-300 ? 1e-300 : v);
    let c = 1;
    let d = 1 / floor(1 - ((a + b) * x) / (a + 1));
    let result = d;
    for (let m = 1; m < 1000; m += 1) {
      const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
      d = 1 / floor(1 + even * d);
      c = floor(1 + even / c);
      result *= d * c;
      const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
      d = 1 / floor(1 + odd * d);
      c = floor(1 + odd / c);
      result *= d * c;
      if (Math.abs(d * c - 1) < 1e-15) break;
    }
    return result;
  }

  // Logarithms of both tails of Beta(a, b) at the point with log-odds z, which keeps the precision of small tails.
  function betaTails(z, a, b, logB) {
    const logX = -Math.log1p(Math.exp(-z));
    const logY = -Math.log1p(Math.exp(z));
    const front = a * logX + b * logY - logB;
    const x = Math.exp(logX);
    if (x < (a + 1) / (a + b + 2)) {
      const lower = Math.min(0, front + Math.log(betaFraction(x, a, b) / a));
      return { lower, upper: Math.log1p(-Math.exp(lower)), front };
    }
    const upper = Math.min(0, front + Math.log(betaFraction(Math.exp(logY), b, a) / b));
    return { lower: Math.log1p(-Math.exp(upper)), upper, front };
  }

  // The quantiles of Beta(a, b) at (i - 1/2)/n, ascending. Newton's method in the log-odds on the logarithm of the
  // smaller tail, where the distribution is nearly linear, inside a shrinking bracket.
  function betaQuantiles(a, b, n) {
    const logB = logBeta(a, b);
    const result = new Float64Array(n);
    let z = Math.log(a / b);
    for (let i = 0; i < n; i += 1) {
      const u = (i + 0.5) / n;
      let low = -740;
      let high = 740;
      for (let step = 0; step < 200; step += 1) {
        const { lower, upper, front } = betaTails(z, a, b, logB);
        const isLow = u < 0.5;
        const miss = isLow ? lower - Math.log(u) : Math.log1p(-u) - upper; // rises with z
        if (miss < 0) low = z;
        else high = z;
        const rate = Math.exp(front - (isLow ? lower : upper));
        let next = z - miss / rate;
        if (!(next > low && next < high)) next = (low + high) / 2;
        const moved = Math.abs(next - z);
        z = next;
        if (moved <= 1e-14 * Math.max(1, Math.abs(z))) break;
      }
      result[i] = 1 / (1 + Math.exp(-z));
    }
    return result;
  }

  // ---- measures of a spectrum (powerpool.analysis.measures) ---------------------------------------------------------

  // exp(entropy) of the magnitudes divided by their sum; 0 if all are 0.
  function effectiveRank(values) {
    let total = 0;
    for (const value of values) total += Math.abs(value);
    if (!(total > 0)) return 0;
    let entropy = 0;
    for (const value of values) {
      const share = Math.abs(value) / total;
      if (share > 0) entropy -= share * Math.log(share);
    }
    return Math.exp(entropy);
  }

  // Percentage of the values in each bin; values outside the edges count in the first and last bin.
  function histogram(values, edges) {
    const counts = new Float64Array(edges.length - 1);
    for (const value of values) {
      let low = 0;
      let high = counts.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (value >= edges[middle]) low = middle;
        else high = middle - 1;
      }
      counts[low] += 100 / values.length;
    }
    return counts;
  }

  return {
    ALIGNMENT,
    betaQuantiles,
    curve,
    effectiveRank,
    etaOfEtaPrime,
    etaOfT,
    etaPrimeOfEta,
    etaTildeOfT,
    fahdpExponent,
    gammaOfT,
    histogram,
    linked,
    tOfEta,
    tOfGamma,
  };
})();
