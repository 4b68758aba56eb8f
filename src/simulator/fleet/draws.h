#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "base/random.h"

namespace penstock::simulator {

// A distribution as its quantiles at 0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9 and 100 %, linear between
// them: the form in which published traces are summarised.
using Knots = std::array<double, 12>;

// The quantile `share`, in [0, 1].
inline double quantile(const Knots& knots, double share) {
  static constexpr Knots kAt = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1};
  size_t right = 1;
  while (right + 1 < kAt.size() && kAt[right] < share) ++right;
  const double part = (share - kAt[right - 1]) / (kAt[right] - kAt[right - 1]);
  return knots[right - 1] + (knots[right] - knots[right - 1]) * part;
}
inline double draw(const Knots& knots, Random& random) {
  return quantile(knots, random.uniform());
}

// Mean 1.
inline double draw_exponential(Random& random) {
  return -std::log1p(-random.uniform());
}

inline double draw_normal(Random& random) {
  const double radius = std::sqrt(2 * draw_exponential(random));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

// By its mean and standard deviation.
inline double draw_lognormal(double mean, double deviation, Random& random) {
  const double variance = std::log1p(deviation * deviation / (mean * mean));
  return std::exp(std::log(mean) - variance / 2 + std::sqrt(variance) * draw_normal(random));
}

// Gamma with scale 1 (Marsaglia and Tsang, 2000; below shape 1 by their power of a uniform number).
inline double draw_gamma(double shape, Random& random) {
  if (shape < 1) {
    const double below = draw_gamma(shape + 1, random);
    return below * std::pow(1 - random.uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = draw_normal(random);
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

// In random order.
template <typename T>
void shuffle(std::vector<T>& values, Random& random) {
  for (size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[random.below(static_cast<uint32_t>(i))]);
}

}  // namespace penstock::simulator
