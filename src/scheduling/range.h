#pragma once

#include <algorithm>
#include <limits>

namespace penstock::scheduling {

// The smallest and the largest of some values, and where a value stands between them.
struct Range {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  void add(double value) {
    min = std::min(min, value);
    max = std::max(max, value);
  }
  double width() const { return max - min; }
  // From 0 at the smallest to 1 at the largest, and the other way round; 1 where all are equal.
  double rise(double value) const { return width() > 0 ? (value - min) / width() : 1.0; }
  double fall(double value) const { return width() > 0 ? (max - value) / width() : 1.0; }
};

}  // namespace penstock::scheduling
