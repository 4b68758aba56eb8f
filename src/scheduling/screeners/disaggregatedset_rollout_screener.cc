#include "scheduling/screeners/disaggregatedset_rollout_screener.h"

#include <algorithm>
#include <set>

#include "base/strings.h"
#include "scheduling/label_selector_text.h"
#include "scheduling/nested_params.h"
#include "scheduling/pods.h"

namespace penstock::scheduling {

namespace {

constexpr std::string_view mode_name(DisaggregatedSetRolloutScreener::Gating gating) {
  switch (gating) {
    case DisaggregatedSetRolloutScreener::Gating::kSum:
      return "sum";
    case DisaggregatedSetRolloutScreener::Gating::kMaxRole:
      return "max-role";
    case DisaggregatedSetRolloutScreener::Gating::kDisabled:
      return "disabled";
  }
  return "";
}

void bind_selector(config::Binder& b, std::vector<DisaggregatedSetRolloutScreener::Selector>& out) {
  DisaggregatedSetRolloutScreener::Selector selector;
  std::string mode;
  b.field("name", selector.name, "", "");
  b.field("headerName", selector.header, "", "");
  b.field("labelKey", selector.label, "", "");
  b.field("mode", mode, "", "");
  selector.header = ascii_lower(selector.header);
  selector.strict = mode == "strict";
  if (selector.name.empty()) b.fail("name", "must be specified");
  if (selector.header.empty()) b.fail("headerName", "must be specified");
  if (selector.label.empty()) b.fail("labelKey", "must be specified");
  if (mode != "strict" && mode != "prefer")
    b.fail("mode", "must be \"strict\" or \"prefer\", got \"" + mode + "\"");
  for (const auto& other : out) {
    if (other.name == selector.name) b.fail("name", "duplicate name '" + selector.name + "'");
    if (other.header == selector.header) b.fail("headerName", "duplicate header '" + selector.header + "'");
  }
  out.push_back(std::move(selector));
}

}  // namespace

// --- RevisionShares -----------------------------------------------------------------------------------

RevisionShares::RevisionShares(std::string_view plugin_name, std::string_view mode,
                               telemetry::MetricRegistry& metrics)
    : name_(plugin_name),
      mode_(mode),
      gauge_(metrics.gauge({"llm_d_epp_disaggregatedset_revision_gating_share",
                            "[ALPHA] Share of requests that each revision gets.",
                            {"plugin_type", "plugin_name", "mode", "revision"}})) {}

RevisionShares::~RevisionShares() {
  show({}, {});
}

void RevisionShares::show(const std::vector<std::string>& revisions, const std::vector<double>& shares) {
  constexpr std::string_view kType = DisaggregatedSetRolloutScreener::kType;
  const std::lock_guard lock(mutex_);
  for (const std::string& before : shown_) {
    if (!std::binary_search(revisions.begin(), revisions.end(), before))
      gauge_.remove({kType, name_, mode_, before});
  }
  for (size_t i = 0; i < revisions.size(); ++i) {
    gauge_.update({kType, name_, mode_, revisions[i]},
                  [&](telemetry::Gauge& gauge) { gauge.set(shares[i]); });
  }
  shown_ = revisions;
}

// --- DisaggregatedSetRolloutScreener ------------------------------------------------------------------

void DisaggregatedSetRolloutScreener::bind(config::Binder& b, Params& p) {
  std::string scope;
  bool has_selector = false;
  nested(b, "scope", "{labelSelector}: text of the selector of the workers; required.",
         [&](config::Binder& s) {
           s.field("labelSelector", scope, "", "");
           has_selector = !trim(scope).empty();
           Result<std::vector<LabelRequirement>> parsed = parse_label_selector(scope);
           if (!parsed.ok()) {
             s.fail("labelSelector", parsed.error().message);
           } else {
             p.scope = std::move(parsed).value();
           }
         });
  nested_list(
      b, "headerSelectors",
      "List of {name, headerName, labelKey, mode}, mode strict or prefer: a header that names a label's "
      "value.",
      [&](config::Binder& s) { bind_selector(s, p.selectors); });
  std::string mode;
  const bool has_gating = nested(
      b, "revisionGating",
      "{mode, revisionLabelKey, roleLabelKey, requireRoles: {values}}: mode sum, max-role or disabled; "
      "required.",
      [&](config::Binder& g) {
        g.field("mode", mode, "", "");
        g.field("revisionLabelKey", p.revision_label, "", "");
        g.field("roleLabelKey", p.role_label, "", "");
        nested(g, "requireRoles", "",
               [&](config::Binder& r) { r.field("values", p.required_roles, "", ""); });
        if (mode == "sum") {
          p.gating = Gating::kSum;
        } else if (mode == "max-role") {
          p.gating = Gating::kMaxRole;
        } else if (mode == "disabled") {
          p.gating = Gating::kDisabled;
        } else {
          g.fail("mode", "must be \"sum\", \"max-role\" or \"disabled\", got \"" + mode + "\"");
        }
        const std::set<std::string> unique(p.required_roles.begin(), p.required_roles.end());
        const bool bad_roles =
            p.required_roles.empty() || unique.size() != p.required_roles.size() || unique.contains("");
        if (p.gating != Gating::kDisabled && bad_roles)
          g.fail("requireRoles", "requireRoles.values must be non-empty and unique");
      });
  if (b.describing()) return;
  if (!has_selector) b.fail("scope", "scope.labelSelector must be specified");
  if (!has_gating) b.fail("revisionGating", "revisionGating must be specified");
}

Result<std::unique_ptr<Plugin>> DisaggregatedSetRolloutScreener::create(Params params,
                                                                        const PluginFactoryContext& context) {
  const std::string_view mode = mode_name(params.gating);
  const auto make = [&]() -> Result<std::shared_ptr<RevisionShares>> {
    return std::make_shared<RevisionShares>(context.name, mode, context.metrics);
  };
  const std::string key = std::string(kType) + "/" + std::string(context.name) + "/" + std::string(mode);
  std::shared_ptr<RevisionShares> shown =
      context.warm == nullptr ? *make() : *context.warm->get<RevisionShares>(key, make);
  return std::unique_ptr<Plugin>(std::make_unique<DisaggregatedSetRolloutScreener>(
      std::move(params), std::move(shown), context.name, context.metrics));
}

DisaggregatedSetRolloutScreener::DisaggregatedSetRolloutScreener(Params params,
                                                                 std::shared_ptr<RevisionShares> shown,
                                                                 std::string_view name,
                                                                 telemetry::MetricRegistry& metrics)
    : params_(std::move(params)),
      name_label_(name),
      no_match_(metrics.counter({"llm_d_epp_disaggregatedset_strict_header_no_match_total",
                                 "[ALPHA] Requests whose strict header matched no endpoint.",
                                 {"plugin_type", "plugin_name", "selector"}})),
      shown_(std::move(shown)) {}

void DisaggregatedSetRolloutScreener::count_worker(const Endpoint& worker, Counts& counts) const {
  const bool in_scope = std::all_of(params_.scope.begin(), params_.scope.end(),
                                    [&](const LabelRequirement& r) { return r.holds(worker); });
  const std::string_view revision = worker.label(params_.revision_label);
  const std::string_view role = worker.label(params_.role_label);
  if (in_scope && !revision.empty() && !role.empty()) ++counts[std::string(revision)][std::string(role)];
}

DisaggregatedSetRolloutScreener::Counts DisaggregatedSetRolloutScreener::count(
    const PoolSnapshot& pool) const {
  {
    const std::lock_guard lock(mutex_);
    if (of_pods_) return *of_pods_;
  }
  Counts counts;
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const auto& endpoint : pool.endpoints) {
    if (endpoint->draining || !seen.emplace(endpoint->ns, endpoint->name).second) continue;
    count_worker(*endpoint, counts);
  }
  return counts;
}

ObjectKind DisaggregatedSetRolloutScreener::object_kind() const {
  return kPodKind;
}

std::vector<std::string> DisaggregatedSetRolloutScreener::object_fields() const {
  return pod_fields();
}

void DisaggregatedSetRolloutScreener::objects(const NotifiedObjects& all) const {
  Counts counts;
  for (Pod& pod : ready_pods(all)) {
    Endpoint worker;
    worker.labels = std::move(pod.labels);
    count_worker(worker, counts);
  }
  {
    const std::lock_guard lock(mutex_);
    of_pods_ = std::move(counts);
  }
  revisions_.renew();
}

DisaggregatedSetRolloutScreener::Shares DisaggregatedSetRolloutScreener::shares_of(const Params& params,
                                                                                   const Counts& counts) {
  const auto workers = [](const auto& roles, const std::string& role) -> uint32_t {
    const auto found = roles.find(role);
    return found == roles.end() ? 0 : found->second;
  };
  const auto covered = [&](const auto& roles) {
    return std::all_of(params.required_roles.begin(), params.required_roles.end(),
                       [&](const std::string& role) { return workers(roles, role) > 0; });
  };
  std::string largest;
  uint64_t most = 0;
  for (const std::string& role : params.required_roles) {
    uint64_t total = 0;
    for (const auto& [revision, roles] : counts) total += covered(roles) ? workers(roles, role) : 0;
    if (total > most) {
      most = total;
      largest = role;
    }
  }
  Shares shares;
  double sum = 0;
  for (const auto& [revision, roles] : counts) {
    double weight = 0;
    if (covered(roles)) {
      if (params.gating == Gating::kMaxRole) {
        weight = workers(roles, largest);
      } else {
        for (const std::string& role : params.required_roles) weight += workers(roles, role);
      }
    }
    shares[revision] = weight;
    sum += weight;
  }
  for (auto& [revision, share] : shares) share = sum > 0 ? share / sum : 0.0;
  return shares;
}

size_t DisaggregatedSetRolloutScreener::draw(std::span<const double> shares, double u) {
  double sum = 0;
  for (const double share : shares) sum += share;
  const double x = u * sum;
  double cumulative = 0;
  size_t last = shares.size();
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] <= 0) continue;
    cumulative += shares[i];
    last = i;
    if (cumulative > x) break;
  }
  return last;
}

DisaggregatedSetRolloutScreener::Revisions DisaggregatedSetRolloutScreener::revisions_of(
    const PoolSnapshot& pool) const {
  Revisions out;
  for (const auto& [name, share] : shares_of(params_, count(pool))) {
    out.names.push_back(name);
    out.shares.push_back(share);
  }
  for (const auto& endpoint : pool.endpoints) {
    const std::string_view revision = endpoint->label(params_.revision_label);
    const auto found = std::lower_bound(out.names.begin(), out.names.end(), revision);
    const bool counts = found != out.names.end() && *found == revision;
    out.of.push_back(counts ? static_cast<uint32_t>(found - out.names.begin()) : kNoRevision);
  }
  return out;
}

size_t DisaggregatedSetRolloutScreener::gate(SchedulingContext& ctx, std::span<Candidate> inout) const {
  const auto revisions = revisions_.get(
      ctx.pool, [&](const PoolSnapshot& pool) { return revisions_of(pool); },
      [&](const Revisions*, const Revisions& now) { shown_->show(now.names, now.shares); });
  const std::vector<uint32_t>& of = revisions->of;
  // Shares of the revisions that the candidates have.
  const std::span<double> shares = ctx.arena.make_filled<double>(revisions->names.size(), 0.0);
  bool any = false;
  for (const Candidate c : inout) {
    if (of[c] == kNoRevision) continue;
    shares[of[c]] = revisions->shares[of[c]];
    any = any || shares[of[c]] > 0;
  }
  const bool strict = std::any_of(params_.selectors.begin(), params_.selectors.end(), [&](const Selector& s) {
    return s.strict && !find_header(ctx.request.headers, s.header).value_or("").empty();
  });
  const size_t drawn = strict || !any ? shares.size() : draw(shares, ctx.random.uniform());
  const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) {
    return of[c] == kNoRevision || (strict ? shares[of[c]] <= 0 : of[c] != drawn);
  });
  return static_cast<size_t>(end - inout.begin());
}

size_t DisaggregatedSetRolloutScreener::screen(SchedulingContext& ctx, std::span<Candidate> inout) const {
  if (params_.gating != Gating::kDisabled) inout = inout.first(gate(ctx, inout));
  for (const Selector& selector : params_.selectors) {
    const std::string_view wanted =
        find_header(ctx.request.headers, selector.header).value_or(std::string_view());
    if (!selector.strict || wanted.empty() || inout.empty()) continue;
    const auto end = std::remove_if(inout.begin(), inout.end(), [&](Candidate c) {
      return ctx.pool.endpoints[c]->label(selector.label) != wanted;
    });
    inout = inout.first(static_cast<size_t>(end - inout.begin()));
    if (inout.empty() && !ctx.explain) no_match_.with({kType, name_label_, selector.name}).add();
  }
  return inout.size();
}

Status DisaggregatedSetRolloutScreener::pre_request(SchedulingContext& ctx,
                                                    const SchedulingResult& result) const {
  if (ctx.edits == nullptr || result.primary == nullptr || result.primary->targets.empty()) return {};
  const Endpoint& endpoint = *ctx.pool.endpoints[result.primary->targets[0]];
  for (const Selector& selector : params_.selectors) {
    const std::string_view value = endpoint.label(selector.label);
    if (!value.empty()) ctx.edits->set_response(selector.header, value);
  }
  return {};
}

}  // namespace penstock::scheduling
