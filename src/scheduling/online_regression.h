#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace penstock::scheduling {

// Linear regression that learns with every observation and slowly forgets: recursive least squares with
// forgetting factor `kForgetting` (an observation counts half after about 350 further ones) and a ridge prior
// (weights near 0 with standard deviation sqrt(kPriorVariance)).
//   k = P x / (lambda + x' P x); w += k (y - w' x); P = (P - k x' P) / lambda
// What is forgotten is the prior again: with each observation one weight, in turn, is observed to be 0 with
// variance kPriorVariance / ((1 - lambda) N), in the same way. So a direction that is never seen stays as
// uncertain as the prior, and those that are seen are not disturbed.
// Inputs should be of the order of 1; what is not finite is not learnt. Where its own numbers overflow, it
// starts over. A plain value of (N^2 + N) doubles.
template <size_t N>
class OnlineRegression {
 public:
  using Features = std::array<double, N>;
  static constexpr double kForgetting = 0.998;
  static constexpr double kPriorVariance = 1e6;

  OnlineRegression() { reset_covariance(); }

  void learn(const Features& x, double y) {
    if (!std::isfinite(y)) return;
    for (const double value : x) {
      if (!std::isfinite(value)) return;
    }
    const double error = y - value_at(x);
    Features px{};
    double gain = kForgetting;
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) px[i] += covariance_[i][j] * x[j];
      gain += x[i] * px[i];
    }
    for (size_t i = 0; i < N; ++i) weights_[i] += px[i] / gain * error;
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j)
        covariance_[i][j] = (covariance_[i][j] - px[i] * px[j] / gain) / kForgetting;
    }
    return_to_prior(samples_ % N);
    ++samples_;
    // The first errors say more of the prior than of the noise.
    if (samples_ > N) {
      const double share = 1.0 / static_cast<double>(std::min<uint64_t>(samples_ - N, kErrorWindow));
      mean_square_error_ += share * (error * error - mean_square_error_);
      mean_absolute_error_ += share * (std::abs(error) - mean_absolute_error_);
    }
    if (!is_finite()) *this = OnlineRegression();
  }

  double value_at(const Features& x) const {
    double out = 0;
    for (size_t i = 0; i < N; ++i) out += weights_[i] * x[i];
    return out;
  }
  // Standard error of a prediction: the noise seen so far, wider where little was learnt.
  double error_at(const Features& x) const {
    double spread = 0;
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) spread += x[i] * covariance_[i][j] * x[j];
    }
    return std::sqrt(mean_square_error_ * (1.0 + std::max(spread, 0.0)));
  }
  double weight(size_t i) const { return weights_[i]; }
  double weight_error(size_t i) const {
    return std::sqrt(mean_square_error_ * std::max(covariance_[i][i], 0.0));
  }
  uint64_t samples() const { return samples_; }
  double mean_absolute_error() const { return mean_absolute_error_; }
  // The noise seen so far: what error_at() is where much was learnt.
  double standard_error() const { return std::sqrt(mean_square_error_); }

 private:
  static constexpr uint64_t kErrorWindow = 200;

  bool is_finite() const {
    double sum = mean_square_error_;
    for (const double weight : weights_) sum += weight;
    for (const auto& row : covariance_) {
      for (const double value : row) sum += value;
    }
    return std::isfinite(sum);
  }
  void return_to_prior(size_t weight) {
    const Features row = covariance_[weight];
    const double gain = kPriorVariance / ((1.0 - kForgetting) * N) + row[weight];
    const double error = -weights_[weight];
    for (size_t i = 0; i < N; ++i) {
      weights_[i] += row[i] / gain * error;
      for (size_t j = 0; j < N; ++j) covariance_[i][j] -= row[i] * row[j] / gain;
    }
  }
  void reset_covariance() {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) covariance_[i][j] = i == j ? kPriorVariance : 0.0;
    }
  }

  Features weights_{};
  std::array<Features, N> covariance_{};
  uint64_t samples_ = 0;
  double mean_square_error_ = 0;
  double mean_absolute_error_ = 0;
};

}  // namespace penstock::scheduling
