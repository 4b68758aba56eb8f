#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::telemetry {

// Own registry instead of prometheus-cpp: updates are relaxed atomics (its histograms take a mutex per
// observation), deprecated twin names are projections made while rendering (they cost nothing per
// request), and every family has a bound on its series.

class Counter {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double v) { value_.store(v, std::memory_order_relaxed); }
  void add(double v) { value_.fetch_add(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Cumulative on render; `bounds` are the upper bounds without +Inf, ascending, and outlive the histogram.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {}
  void observe(double v) { observe(v, 1); }
  void observe(double v, uint64_t times);
  uint64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  std::span<const double> bounds() const { return bounds_; }
  uint64_t bucket(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }

 private:
  std::span<const double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
  std::atomic<uint32_t> last_{0};  // the bucket of a late observation: the next one often falls into it
};

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// A deprecated name under which a family is rendered a second time, summed over the labels it lacks.
// Labels are given by the twin's names; `source` names the family's label where it differs.
struct Twin {
  std::string_view name;
  struct Label {
    std::string_view name;
    std::string_view source;
  };
  std::vector<Label> labels;
};

struct FamilyOptions {
  std::string_view name;
  std::string_view help;
  std::vector<std::string_view> labels;
  std::span<const double> bounds = {};  // histograms
  size_t max_series = 10000;  // further label sets fall into one series whose labels are all "other"
  // Of histograms, which write a line a bucket: 14 of them with 10000 series made a page of 300 MB.
  static constexpr size_t kMaxHistogramSeries = 1000;
  std::vector<Twin> twins = {};
};

// An exposition whose families are written in several places: the format wants each in one piece.
class Page {
 public:
  // The text of the family, made with its first mention.
  std::string& family(std::string_view name);
  std::string text() const;

 private:
  std::vector<std::unique_ptr<std::string>> texts_;  // in the order of their first mention
  std::map<std::string, std::string*, std::less<>> by_name_;
};

// Text of one exposition (Prometheus text format 0.0.4), appended to by families and collectors.
class Writer {
 public:
  struct Label {
    std::string_view name;
    std::string_view value;
  };

  explicit Writer(std::string& out) : out_(&out) {}
  // Every sample has the label `common`, in place of one of that name; its texts outlive the writer.
  explicit Writer(Page& page, Label common = {}) : page_(&page), common_(common) {}
  void header(std::string_view name, std::string_view help, MetricType type);
  void sample(std::string_view name, std::span<const Label> labels, double value);
  void sample(std::string_view name, std::initializer_list<Label> labels, double value) {
    sample(name, std::span<const Label>(labels.begin(), labels.size()), value);
  }

 private:
  std::string* out_ = nullptr;  // of a page: the family that was begun last
  Page* page_ = nullptr;
  Label common_;
};

class FamilyBase {
 public:
  virtual ~FamilyBase() = default;
  virtual void render(Writer& out) const = 0;
  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  MetricType type() const { return type_; }
  std::span<const std::string> labels() const { return labels_; }
  std::span<const Twin> twins() const { return twins_; }

 protected:
  FamilyBase(const FamilyOptions& options, MetricType type);
  // Key of a label set: values joined by a byte that cannot occur in one.
  static void make_key(std::span<const std::string_view> values, std::string& key);

  std::string name_;
  std::string help_;
  MetricType type_;
  std::vector<std::string> labels_;
  std::span<const double> bounds_;
  size_t max_series_;
  std::vector<Twin> twins_;
};

// All series of one metric name. with() finds or makes a series: a shared lock and one hash look-up;
// hot paths keep the reference, which stays valid until the series is removed or the registry goes.
// Thread-safe.
template <typename T>
class Family final : public FamilyBase {
 public:
  Family(const FamilyOptions& options, MetricType type) : FamilyBase(options, type) {}
  // REQUIRES: as many values as the family has labels.
  T& with(std::initializer_list<std::string_view> values) {
    return with(std::span<const std::string_view>(values.begin(), values.size()));
  }
  T& with(std::span<const std::string_view> values);
  // Drops the series of these values (of an endpoint that left, say), if there is one. REQUIRES: it is
  // changed through update() only: references die.
  void remove(std::initializer_list<std::string_view> values);
  // Calls `change(T&)`; remove() waits for it.
  template <typename Change>
  void update(std::initializer_list<std::string_view> values, Change&& change) {
    const std::lock_guard lock(removal_mutex_);
    change(with(values));
  }
  size_t series() const;
  void render(Writer& out) const override;

 private:
  struct Series {
    std::vector<std::string> values;
    std::unique_ptr<T> metric;
  };
  std::mutex removal_mutex_;  // taken before mutex_
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, Series> series_;
};

// Owns every family. One per process; passed by reference, never global. Thread-safe.
//
// A registry may be part of another one: for one of several pools. Its series are on the other's page too,
// with a label that says whose they are, and vanish with it.
class MetricRegistry {
 public:
  MetricRegistry() = default;
  // A part of `whole`, which outlives it. REQUIRES: `whole` is no part itself.
  MetricRegistry(MetricRegistry& whole, std::string label, std::string value);
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The family of this name, made on the first call. REQUIRES: later calls agree on the type and labels.
  Family<Counter>& counter(const FamilyOptions& options);
  Family<Gauge>& gauge(const FamilyOptions& options);
  Family<Histogram>& histogram(const FamilyOptions& options);
  // Called on each render, in order of registration: for values that live elsewhere. The returned number
  // goes to remove_collector().
  uint64_t add_collector(std::function<void(Writer&)> collect);
  void remove_collector(uint64_t id);
  // The whole exposition, families by name, then collectors; with the parts, in the order they came.
  std::string render() const;
  // Every family registered so far, by name, without the parts': the metrics reference is generated from it.
  std::vector<const FamilyBase*> families() const;

 private:
  template <typename T>
  Family<T>& find_or_make(const FamilyOptions& options, MetricType type);
  void write(Writer& out) const;

  MetricRegistry* whole_ = nullptr;
  const std::string label_;
  const std::string value_;
  mutable std::mutex parts_mutex_;  // held while parts are written: they stay
  std::vector<const MetricRegistry*> parts_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<FamilyBase>> families_;
  std::vector<std::pair<uint64_t, std::function<void(Writer&)>>> collectors_;
  uint64_t next_collector_ = 1;
};

// Bounds a label whose values clients choose: the first `limit` distinct values pass, later ones become
// "other", and so does what is no UTF-8 (a scraper would refuse the whole page) or longer than kMaxBytes;
// "" passes; pinned values pass always and use no place. Thread-safe; no allocation for a value already
// known.
class LabelBudget {
 public:
  static constexpr size_t kMaxBytes = 256;
  explicit LabelBudget(size_t limit) : limit_(limit) {}
  void pin(std::string_view value);
  // The value, or "other". The result is valid as long as the budget lives.
  std::string_view admit(std::string_view value);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view v) const { return std::hash<std::string_view>()(v); }
  };
  size_t limit_;
  size_t used_ = 0;
  std::shared_mutex mutex_;
  std::unordered_map<std::string, bool, Hash, std::equal_to<>> known_;  // value -> pinned
};

// Bucket bounds of the reference's catalogue.
namespace buckets {
std::span<const double> latency();         // LAT, seconds
std::span<const double> ttft();            // TTFT, seconds
std::span<const double> tpot();            // TPOT, seconds
std::span<const double> itl();             // ITL, seconds
std::span<const double> ntpot();           // NTPOT, seconds
std::span<const double> request_bytes();   // REQB
std::span<const double> response_bytes();  // RESB
std::span<const double> tokens_in();       // TOKIN
std::span<const double> tokens_out();      // TOKOUT
std::span<const double> short_seconds();   // SHORT
std::span<const double> queue_seconds();   // QUEUE
std::span<const double> ratio();           // RATIO
std::span<const double> hit_bytes();       // HITB
std::span<const double> micro_seconds();   // ours: 1 µs … 10 ms, for decisions
}  // namespace buckets

}  // namespace penstock::telemetry
