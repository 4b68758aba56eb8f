#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "inference/signals.h"

namespace penstock {

// Signals as bits: bit i is Signal i, kAdapterBit the adapter lists.
using SignalSet = uint8_t;
inline constexpr SignalSet kAdapterBit = 1U << kSignalCount;
constexpr SignalSet signal_bit(Signal signal) {
  return static_cast<SignalSet>(1U << static_cast<unsigned>(signal));
}

// How far a signal's age lets it speak, as a share of what a fresh value would:
//
//   influence(age) = 1                                                    age <= budget
//                  = (unknown_after - age) / (unknown_after - budget)      in between
//                  = 0, and the value counts as unknown                    age >= unknown_after
//
// Example, budget 2000 ms and unknown_after 10000 ms: 1 at 2000 ms, 0.75 at 4000, 0.5 at 6000, 0 at 10000.
struct FreshnessBounds {
  Duration budget = std::chrono::seconds(2);
  Duration unknown_after = std::chrono::seconds(10);  // above `budget`

  double influence(Duration age) const {
    if (age <= budget) return 1.0;
    if (age >= unknown_after) return 0.0;
    return static_cast<double>((unknown_after - age).count()) /
           static_cast<double>((unknown_after - budget).count());
  }
};

// What decides while too few candidates have fresh signals.
enum class SimpleChoice : uint8_t {
  kNone,           // the profile's own scorers, whatever they have
  kLeastInFlight,  // fewest own requests in flight, equals in turn
  kRoundRobin,     // in turn
};
std::string_view simple_choice_name(SimpleChoice choice);

// Penstock's own treatment of age (penstock.mode strict). Immutable, part of a policy.
struct Freshness {
  std::array<FreshnessBounds, kSignalCount + 1> bounds;  // by Signal; the last one of the adapter lists
  FreshnessBounds attributes;                            // of scraped attributes (EndpointScalar)
  // Requests sent since the last scrape count as waiting and as running.
  bool in_flight_credit = true;
  // Below this share of candidates with fresh values of all signals that a profile needs, `fallback` decides.
  double min_fresh_share = 0.5;
  SimpleChoice fallback = SimpleChoice::kLeastInFlight;

  const FreshnessBounds& of(Signal signal) const { return bounds[static_cast<size_t>(signal)]; }
  const FreshnessBounds& adapters() const { return bounds[kSignalCount]; }

  // Whether requests sent since the last scrape count in a signal.
  bool has_credit(Signal signal) const {
    return in_flight_credit && (signal == Signal::kWaitingRequests || signal == Signal::kRunningRequests);
  }
  // Load ages; the size of a cache doesn't.
  static bool ages(Signal signal) {
    return signal != Signal::kCacheBlockSize && signal != Signal::kCacheNumBlocks;
  }
  // Influence of one value, 0 where it was never observed.
  double influence(const SignalView& signals, Signal signal, Candidate candidate, TimePoint now) const {
    const SignalValue value = signals.at(signal, candidate);
    return is_known(value.state, value.observed_at) ? of(signal).influence(now - value.observed_at) : 0.0;
  }
  // The least influence of the signals of a set.
  double influence(const SignalView& signals, SignalSet set, Candidate candidate, TimePoint now) const;
  // True when the whole pool's values of the set are known and within their budgets: the usual case, for
  // the price of one comparison a signal. False: look at each candidate.
  bool all_fresh(const SignalView& signals, SignalSet set, TimePoint now) const {
    for (size_t i = 0; i <= kSignalCount; ++i) {
      if ((set >> i & 1U) == 0) continue;
      if (signals.oldest[i] == kNever || now - signals.oldest[i] > bounds[i].budget) return false;
    }
    return true;
  }
};

}  // namespace penstock
