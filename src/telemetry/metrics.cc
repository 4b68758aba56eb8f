#include "telemetry/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>

#include "base/strings.h"

namespace penstock::telemetry {

void Histogram::observe(double v, uint64_t times) {
  size_t at = last_.load(std::memory_order_relaxed);
  const bool again = (at == 0 || v > bounds_[at - 1]) && (at == bounds_.size() || v <= bounds_[at]);
  if (!again) {
    at = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin());
    last_.store(static_cast<uint32_t>(at), std::memory_order_relaxed);
  }
  counts_[at].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(v * static_cast<double>(times), std::memory_order_relaxed);
}

uint64_t Histogram::count() const {
  uint64_t total = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) total += bucket(i);
  return total;
}

namespace {

std::string_view type_name(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// What the reference puts in front of every help text of its families.
constexpr std::string_view kAlpha = "[ALPHA] ";
constexpr std::string_view kReferencePrefix = "llm_d_epp_";

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
    if (out.size() > 2 && out.ends_with(".0")) out.resize(out.size() - 2);
  }
}

void append_escaped(std::string& out, std::string_view value, bool quote) {
  for (const char c : value) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (quote && c == '"') {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

// Sum of the series that fall together when labels are projected away.
struct Merged {
  double value = 0;
  std::vector<uint64_t> buckets;
  double sum = 0;
};

void merge(Merged& into, const Counter& c, std::span<const double>) {
  into.value += static_cast<double>(c.value());
}
void merge(Merged& into, const Gauge& g, std::span<const double>) {
  into.value += g.value();
}
void merge(Merged& into, const Histogram& h, std::span<const double> bounds) {
  into.buckets.resize(bounds.size() + 1);
  for (size_t i = 0; i <= bounds.size(); ++i) into.buckets[i] += h.bucket(i);
  into.sum += h.sum();
}

void write_series(Writer& out, std::string_view name, std::vector<Writer::Label> labels, const Merged& merged,
                  MetricType type, std::span<const double> bounds) {
  if (type != MetricType::kHistogram) {
    out.sample(name, labels, merged.value);
    return;
  }
  const std::string bucket_name = std::string(name) + "_bucket";
  uint64_t cumulative = 0;
  labels.push_back({"le", ""});
  for (size_t i = 0; i <= bounds.size(); ++i) {
    cumulative += merged.buckets[i];
    std::string bound;
    append_number(bound, i < bounds.size() ? bounds[i] : HUGE_VAL);
    labels.back().value = bound;
    out.sample(bucket_name, labels, static_cast<double>(cumulative));
  }
  labels.pop_back();
  out.sample(std::string(name) + "_sum", labels, merged.sum);
  out.sample(std::string(name) + "_count", labels, static_cast<double>(cumulative));
}

}  // namespace

std::string& Page::family(std::string_view name) {
  const auto it = by_name_.find(name);
  if (it != by_name_.end()) return *it->second;
  texts_.push_back(std::make_unique<std::string>());
  by_name_.emplace(name, texts_.back().get());
  return *texts_.back();
}

std::string Page::text() const {
  std::string out;
  for (const auto& text : texts_) out += *text;
  return out;
}

void Writer::header(std::string_view name, std::string_view help, MetricType type) {
  if (page_ != nullptr) {
    out_ = &page_->family(name);
    if (!out_->empty()) return;
  }
  *out_ += "# HELP ";
  *out_ += name;
  *out_ += ' ';
  if (name.starts_with(kReferencePrefix) && !help.starts_with(kAlpha)) *out_ += kAlpha;
  append_escaped(*out_, help, false);
  fmt::format_to(std::back_inserter(*out_), "\n# TYPE {} {}\n", name, type_name(type));
}

void Writer::sample(std::string_view name, std::span<const Label> labels, double value) {
  assert(out_ != nullptr);  // a page's samples come after their header
  std::string& out = *out_;
  out += name;
  char separator = '{';
  const auto add = [&](const Label& label) {
    out += separator;
    out += label.name;
    out += "=\"";
    append_escaped(out, label.value, true);
    out += '"';
    separator = ',';
  };
  bool common = !common_.name.empty();
  for (const Label& label : labels) {
    const bool replaced = common && label.name == common_.name;
    add(replaced ? common_ : label);
    if (replaced) common = false;
  }
  if (common) add(common_);
  if (separator == ',') out += '}';
  out += ' ';
  append_number(out, value);
  out += '\n';
}

FamilyBase::FamilyBase(const FamilyOptions& options, MetricType type)
    : name_(options.name),
      help_(options.help),
      type_(type),
      labels_(options.labels.begin(), options.labels.end()),
      bounds_(options.bounds),
      max_series_(type == MetricType::kHistogram
                      ? std::min(options.max_series, FamilyOptions::kMaxHistogramSeries)
                      : options.max_series),
      twins_(options.twins) {}

void FamilyBase::make_key(std::span<const std::string_view> values, std::string& key) {
  key.clear();
  for (const std::string_view value : values) {
    key += value;
    key += '\xFF';
  }
}

template <typename T>
T& Family<T>::with(std::span<const std::string_view> values) {
  assert(values.size() == labels_.size());
  thread_local std::string key;
  make_key(values, key);
  {
    const std::shared_lock lock(mutex_);
    const auto it = series_.find(key);
    if (it != series_.end()) return *it->second.metric;
  }
  const std::unique_lock lock(mutex_);
  std::vector<std::string> owned(values.begin(), values.end());
  if (series_.size() >= max_series_ && !series_.contains(key)) {
    owned.assign(labels_.size(), "other");
    const std::vector<std::string_view> views(owned.begin(), owned.end());
    make_key(views, key);
  }
  Series& series = series_[key];
  if (!series.metric) {
    series.values = std::move(owned);
    if constexpr (std::is_same_v<T, Histogram>) {
      series.metric = std::make_unique<T>(bounds_);
    } else {
      series.metric = std::make_unique<T>();
    }
  }
  return *series.metric;
}

template <typename T>
void Family<T>::remove(std::initializer_list<std::string_view> values) {
  assert(values.size() == labels_.size());
  std::string key;
  make_key({values.begin(), values.size()}, key);
  const std::lock_guard removal(removal_mutex_);
  const std::unique_lock lock(mutex_);
  series_.erase(key);
}

template <typename T>
size_t Family<T>::series() const {
  const std::shared_lock lock(mutex_);
  return series_.size();
}

template <typename T>
void Family<T>::render(Writer& out) const {
  const std::shared_lock lock(mutex_);
  if (series_.empty()) return;
  std::vector<const Series*> sorted;
  sorted.reserve(series_.size());
  for (const auto& [key, series] : series_) sorted.push_back(&series);
  std::sort(sorted.begin(), sorted.end(),
            [](const Series* a, const Series* b) { return a->values < b->values; });

  out.header(name_, help_, type_);
  std::vector<Writer::Label> labels;
  for (const Series* series : sorted) {
    labels.clear();
    for (size_t i = 0; i < labels_.size(); ++i) labels.push_back({labels_[i], series->values[i]});
    Merged merged;
    merge(merged, *series->metric, bounds_);
    write_series(out, name_, labels, merged, type_, bounds_);
  }

  for (const Twin& twin : twins_) {
    std::vector<size_t> columns;
    for (const Twin::Label& label : twin.labels) {
      const std::string_view source = label.source.empty() ? label.name : label.source;
      const auto at = std::find(labels_.begin(), labels_.end(), source);
      assert(at != labels_.end());
      columns.push_back(static_cast<size_t>(at - labels_.begin()));
    }
    std::map<std::vector<std::string_view>, Merged> groups;
    for (const Series* series : sorted) {
      std::vector<std::string_view> values;
      for (const size_t column : columns) values.push_back(series->values[column]);
      merge(groups[values], *series->metric, bounds_);
    }
    const std::string_view help =
        help_.starts_with(kAlpha) ? std::string_view(help_).substr(kAlpha.size()) : help_;
    out.header(twin.name, fmt::format("{}[Deprecated: Use {}] {}", kAlpha, name_, help), type_);
    for (const auto& [values, merged] : groups) {
      labels.clear();
      for (size_t i = 0; i < values.size(); ++i) labels.push_back({twin.labels[i].name, values[i]});
      write_series(out, twin.name, labels, merged, type_, bounds_);
    }
  }
}

template class Family<Counter>;
template class Family<Gauge>;
template class Family<Histogram>;

template <typename T>
Family<T>& MetricRegistry::find_or_make(const FamilyOptions& options, MetricType type) {
  const std::lock_guard lock(mutex_);
  for (const auto& family : families_) {
    if (family->name() == options.name) {
      assert(family->type() == type && family->labels().size() == options.labels.size());
      return static_cast<Family<T>&>(*family);
    }
  }
  families_.push_back(std::make_unique<Family<T>>(options, type));
  return static_cast<Family<T>&>(*families_.back());
}

Family<Counter>& MetricRegistry::counter(const FamilyOptions& o) {
  return find_or_make<Counter>(o, MetricType::kCounter);
}
Family<Gauge>& MetricRegistry::gauge(const FamilyOptions& o) {
  return find_or_make<Gauge>(o, MetricType::kGauge);
}
Family<Histogram>& MetricRegistry::histogram(const FamilyOptions& o) {
  return find_or_make<Histogram>(o, MetricType::kHistogram);
}

uint64_t MetricRegistry::add_collector(std::function<void(Writer&)> collect) {
  const std::lock_guard lock(mutex_);
  collectors_.emplace_back(next_collector_, std::move(collect));
  return next_collector_++;
}

void MetricRegistry::remove_collector(uint64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(collectors_, [id](const auto& entry) { return entry.first == id; });
}

std::vector<const FamilyBase*> MetricRegistry::families() const {
  const std::lock_guard lock(mutex_);
  std::vector<const FamilyBase*> out;
  for (const auto& family : families_) out.push_back(family.get());
  std::sort(out.begin(), out.end(), [](const auto* a, const auto* b) { return a->name() < b->name(); });
  return out;
}

MetricRegistry::MetricRegistry(MetricRegistry& whole, std::string label, std::string value)
    : whole_(&whole), label_(std::move(label)), value_(std::move(value)) {
  assert(whole.whole_ == nullptr);
  const std::lock_guard lock(whole.parts_mutex_);
  whole.parts_.push_back(this);
}

MetricRegistry::~MetricRegistry() {
  if (whole_ == nullptr) return;
  const std::lock_guard lock(whole_->parts_mutex_);
  std::erase(whole_->parts_, this);
}

void MetricRegistry::write(Writer& out) const {
  for (const FamilyBase* family : families()) family->render(out);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, collect] : collectors_) collect(out);
}

std::string MetricRegistry::render() const {
  const std::lock_guard lock(parts_mutex_);
  if (parts_.empty()) {
    std::string out;
    Writer writer(out);
    write(writer);
    return out;
  }
  Page page;
  Writer own(page);
  write(own);
  for (const MetricRegistry* part : parts_) {
    Writer writer(page, {part->label_, part->value_});
    part->write(writer);
  }
  return page.text();
}

void LabelBudget::pin(std::string_view value) {
  const std::unique_lock lock(mutex_);
  const auto it = known_.find(value);
  if (it == known_.end()) {
    known_.emplace(value, true);
  } else if (!it->second) {
    it->second = true;
    --used_;
  }
}

std::string_view LabelBudget::admit(std::string_view value) {
  if (value.empty()) return {};
  {
    const std::shared_lock lock(mutex_);
    const auto it = known_.find(value);
    if (it != known_.end()) return it->first;
    if (used_ >= limit_ || value.size() > kMaxBytes || !is_utf8(value)) return "other";
  }
  const std::unique_lock lock(mutex_);
  const auto it = known_.find(value);
  if (it != known_.end()) return it->first;
  if (used_ >= limit_) return "other";
  ++used_;
  return known_.emplace(value, false).first->first;
}

namespace buckets {
namespace {
constexpr double kLatency[] = {.005, .025, .05, .1,  .2,  .4,  .6,  .8,   1,    1.25, 1.5, 2,
                               3,    4,    5,   6,   8,   10,  15,  20,   30,   45,   60,  120,
                               180,  240,  300, 360, 480, 600, 900, 1200, 1800, 2700, 3600};
constexpr double kTpot[] = {.0005, .00205, .005, .01, .02, .04, .06, .08, .1, .125,
                            .15,   .2,     .3,   .4,  .5,  .6,  .8,  1,   2};
constexpr double kItl[] = {.001, .005, .01, .02, .04, .06, .08, .1, .15, .2, .3, .5, .75, 1, 2};
constexpr double kNtpot[] = {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10};
constexpr double kRequestBytes[] = {64,        128,       256,       512,       1024,     2048,     4096,
                                    8192,      16384,     32768,     65536,     131072,   262144,   524288,
                                    1048576,   2097152,   4194304,   8388608,   16777216, 33554432, 67108864,
                                    134217728, 268435456, 536870912, 1073741824};
// 32778 stands so in the reference's catalogue; existing dashboards carry it.
constexpr double kTokensIn[] = {1,    8,    16,    32,    64,    128,    256,    512,    1024,   2048,
                                4096, 8192, 16384, 32778, 65536, 131072, 262144, 524288, 1048576};
constexpr double kShort[] = {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1};
constexpr double kQueue[] = {.0001, .0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60};
constexpr double kRatio[] = {0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1};
constexpr double kHitBytes[] = {0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
constexpr double kMicro[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2};
}  // namespace

std::span<const double> latency() {
  return kLatency;
}
std::span<const double> ttft() {
  return std::span(kLatency).first(24);
}
std::span<const double> tpot() {
  return kTpot;
}
std::span<const double> itl() {
  return kItl;
}
std::span<const double> ntpot() {
  return kNtpot;
}
std::span<const double> request_bytes() {
  return kRequestBytes;
}
std::span<const double> response_bytes() {
  return std::span(kTokensIn).first(15);
}
std::span<const double> tokens_in() {
  return kTokensIn;
}
std::span<const double> tokens_out() {
  return std::span(kTokensIn).first(12);
}
std::span<const double> short_seconds() {
  return kShort;
}
std::span<const double> queue_seconds() {
  return kQueue;
}
std::span<const double> ratio() {
  return kRatio;
}
std::span<const double> hit_bytes() {
  return kHitBytes;
}
std::span<const double> micro_seconds() {
  return kMicro;
}
}  // namespace buckets

}  // namespace penstock::telemetry
