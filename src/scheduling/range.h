#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::scheduling {

// The smallest and the largest of some values, and where a value stands between them. A NaN is neither of
// them and stands nowhere: its place is NaN.
struct Range {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  void add(double value) {
    min = std::min(min, value);
    max = std::max(max, value);
  }
  double width() const { return max - min; }
  // From 0 at the smallest to 1 at the largest, and the other way round; 1 where all are equal.
  double rise(double value) const { return width() > 0 ? (value - min) / width() : alone(value); }
  double fall(double value) const { return width() > 0 ? (max - value) / width() : alone(value); }

 private:
  static double alone(double value) { return std::isnan(value) ? value : 1.0; }
};

}  // namespace penstock::scheduling
