"use strict";

/* The activations that take a sigma, in double precision; u = sigma x.  The library's kernels cannot run in a
   browser, so these are separate closed forms, compared with the library by a test.  A gate is computed from its
   tail probability on the side where that is small, which avoids cancellation for any x. */
const FORMULAS = (() => {
  const { PI, abs, atan2, exp, sqrt } = Math;

  /** A distribution function at u, from its tail probability beyond |u|. */
  const fromTail = (tail, u) => (u < 0 ? tail(-u) : 1 - tail(u));

  const cauchyTail = (a) => atan2(1, a) / PI;

  /* Student's t with 3 degrees of freedom beyond sqrt(3) a: (arctan(1/a) - a/(1+a^2))/pi.  For large a the two
     terms cancel, but a/(1+a^2) is the first term of Euler's series for the arctangent,
       arctan(1/a) = sum over n of  prod_{j<=n} 2j/(2j+1)  s^n  a s,   s = 1/(1+a^2),
     so the difference is the sum of the other terms, which are all positive. */
  function studentTail(a) {
    const s = 1 / (1 + a * a);
    if (a < 1) return (atan2(1, a) - a * s) / PI;
    let term = a * s;
    let sum = 0;
    for (let n = 1; n <= 60; n += 1) {
      term *= ((2 * n) / (2 * n + 1)) * s;
      sum += term;
    }
    return sum / PI;
  }

  const normalDensity = (u) => exp((-u * u) / 2) / sqrt(2 * PI);

  /* The normal tail: 1/2 - phi (a + a^3/3 + a^5/(3*5) + ...) for small a, otherwise by the continued fraction
     of Mills' ratio, 1/(a + 1/(a + 2/(a + 3/(a + ...)))). */
  function normalTail(a) {
    if (a < 2) {
      let term = a;
      let sum = a;
      for (let n = 1; n <= 40; n += 1) {
        term *= (a * a) / (2 * n + 1);
        sum += term;
      }
      return 0.5 - normalDensity(a) * sum;
    }
    let fraction = a;
    for (let n = 120; n >= 1; n -= 1) fraction = a + n / fraction;
    return normalDensity(a) / fraction;
  }

  const lomax = (u) => 1 / (1 + abs(u));
  const square = (y) => y * y;

  return {
    iglu: {
      value: (x, sigma) => x * fromTail(cauchyTail, sigma * x),
      slope: (x, sigma) => fromTail(studentTail, sigma * x),
      curvature: (x, sigma) => (2 * sigma) / PI / square(1 + square(sigma * x)),
    },
    iglu_approx: {
      value: (x, sigma) => x * fromTail((a) => lomax(a) / 2, sigma * x),
      slope: (x, sigma) => fromTail((a) => square(lomax(a)) / 2, sigma * x),
      curvature: (x, sigma) => sigma * lomax(sigma * x) ** 3,
    },
    gelu_a: {
      value: (x, sigma) => x * fromTail(normalTail, sigma * x),
      slope: (x, sigma) => fromTail((a) => normalTail(a) - a * normalDensity(a), sigma * x),
      curvature: (x, sigma) => sigma * normalDensity(sigma * x) * (2 - square(sigma * x)),
    },
    z: {
      value: (x, sigma) => fromTail(cauchyTail, sigma * x),
      slope: (x, sigma) => sigma / PI / (1 + square(sigma * x)),
      curvature: (x, sigma) => (-2 * sigma * sigma * (sigma * x)) / PI / square(1 + square(sigma * x)),
    },
    z_approx: {
      value: (x, sigma) => fromTail((a) => lomax(a) / 2, sigma * x),
      slope: (x, sigma) => (sigma * square(lomax(sigma * x))) / 2,
      curvature: (x, sigma) => -Math.sign(x) * sigma * sigma * lomax(sigma * x) ** 3,
    },
  };
})();
