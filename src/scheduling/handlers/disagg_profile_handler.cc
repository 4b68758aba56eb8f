#include "scheduling/handlers/disagg_profile_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "scheduling/handlers/data_parallel_profile_handler.h"
#include "scheduling/nested_params.h"

namespace penstock::scheduling {

namespace {

constexpr size_t kMaxModels = 100;

const ProfileResult* find_result(const SchedulingResult& result, std::string_view profile) {
  for (const ProfileResult* candidate : result.profiles) {
    if (candidate != nullptr && candidate->profile_name == profile && !candidate->targets.empty())
      return candidate;
  }
  return nullptr;
}

telemetry::FamilyOptions decision_family(bool pd_only) {
  telemetry::FamilyOptions options{
      pd_only ? "llm_d_epp_pd_decision_total" : "llm_d_epp_disagg_decision_total",
      "[ALPHA] Requests by the stages they were split into.",
      {"plugin_name", "plugin_type", "model_name", "decision_type"}};
  options.twins.push_back({pd_only ? "llm_d_inference_scheduler_pd_decision_total"
                                   : "llm_d_inference_scheduler_disagg_decision_total",
                           {{"model_name", "model_name"}, {"decision_type", "decision_type"}}});
  return options;
}

// "decode-first": case, dashes and underscores do not count.
bool read_stage_order(config::Binder& b, bool& prefill_first) {
  std::string order = "decode-first";
  b.field("stageOrder", order, "", "decode-first or prefill-first.");
  std::string plain;
  for (const char c : order) {
    if (c != '-' && c != '_') plain += ascii_lower(c);
  }
  prefill_first = plain == "prefillfirst" || plain == "prefill";
  const bool known = prefill_first || plain.empty() || plain == "decodefirst" || plain == "decode";
  if (!b.describing() && !known) {
    b.fail("stageOrder",
           "invalid stage order \"" + order + "\", must be \"decode-first\" or \"prefill-first\"");
  }
  return known;
}

Error config_error(const std::string& path, std::string_view message) {
  return Error{ErrorCode::kInvalidConfig, path + ": " + std::string(message)};
}

// The results of the given profiles that there are, the primary first.
std::span<const ProfileResult* const> collect(SchedulingContext& ctx,
                                              std::span<const ProfileResult* const> results,
                                              std::initializer_list<size_t> wanted) {
  std::span<const ProfileResult*> out = ctx.arena.make_filled<const ProfileResult*>(wanted.size(), nullptr);
  size_t count = 0;
  for (const size_t index : wanted) {
    if (index < results.size() && results[index] != nullptr) out[count++] = results[index];
  }
  return out.first(count);
}

std::span<const uint32_t> run(SchedulingContext& ctx, size_t index) {
  return ctx.arena.make_filled<uint32_t>(1, static_cast<uint32_t>(index));
}

size_t index_of(std::span<const std::string> names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

const Error kNoDecode{ErrorCode::kInternal, "failed to find available decode workers"};

}  // namespace

// --- headers and counters -----------------------------------------------------------------------------

void DisaggHeaders::apply(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (ctx.edits == nullptr) return;
  constexpr std::string_view kPrefill = "x-prefiller-host-port";
  constexpr std::string_view kEncode = "x-encoder-hosts-ports";
  ctx.edits->remove_request(kPrefill);
  if (const ProfileResult* prefill = find_result(result, prefill_profile))
    ctx.edits->set_request(kPrefill, ctx.pool.endpoints[prefill->targets[0]]->host_port);
  ctx.edits->remove_request(kEncode);
  if (const ProfileResult* encode = find_result(result, encode_profile)) {
    std::string joined;
    for (const Candidate target : encode->targets) {
      if (!joined.empty()) joined += ',';
      joined += ctx.pool.endpoints[target]->host_port;
    }
    ctx.edits->set_request(kEncode, joined);
  }
}

DisaggCounters::DisaggCounters(telemetry::MetricRegistry& metrics, std::string_view plugin_name,
                               std::string_view plugin_type, bool pd_only)
    : decisions_(metrics.counter(decision_family(pd_only))),
      plugin_name_(plugin_name),
      plugin_type_(plugin_type),
      models_(kMaxModels) {}

void DisaggCounters::count(const SchedulingContext& ctx, bool encode, bool prefill) const {
  if (ctx.explain) return;
  const std::string_view decision = encode ? (prefill ? "encode-prefill-decode" : "encode-decode")
                                           : (prefill ? "prefill-decode" : "decode-only");
  const std::string_view model = ctx.request.target_model.empty() ? std::string_view("unknown")
                                                                  : models_.admit(ctx.request.target_model);
  decisions_.with({plugin_name_, plugin_type_, model, decision}).add();
}

// --- disagg-profile-handler ---------------------------------------------------------------------------

void DisaggProfileHandler::bind(config::Binder& b, Params& p) {
  const bool order_known = read_stage_order(b, p.prefill_first);
  nested(b, "profiles",
         "{decode, prefill, encode}: names of the stages' profiles, the stages' own where absent.",
         [&](config::Binder& n) {
           n.field("decode", p.decode_profile, "", "");
           n.field("prefill", p.stages.prefill_profile, "", "");
           n.field("encode", p.stages.encode_profile, "", "");
         });
  nested(
      b, "deciders",
      "{prefill, encode}: names of the plugins that decide whether a stage is split off; absent: it is not "
      "(prefill-first: prefill always is).",
      [&](config::Binder& n) {
        n.field("prefill", p.prefill_decider, "", "");
        n.field("encode", p.encode_decider, "", "");
      });
  if (!b.describing() && order_known && p.prefill_first && !p.prefill_decider.empty())
    b.fail("deciders", "prefill decider is not supported in prefill-first stage order");
}

void DisaggProfileHandler::bind_flat(config::Binder& b, Params& p) {
  const bool order_known = read_stage_order(b, p.prefill_first);
  std::string older;
  b.field("decodeProfile", p.decode_profile, "", "");
  b.field("prefillProfile", p.stages.prefill_profile, "", "");
  b.field("encodeProfile", p.stages.encode_profile, "", "");
  b.field("prefillDeciderPluginName", p.prefill_decider, "", "");
  b.field("deciderPluginName", older, "", "");
  b.field("encodeDeciderPluginName", p.encode_decider, "", "");
  if (p.prefill_decider.empty()) p.prefill_decider = older;
  if (order_known && p.prefill_first && !p.prefill_decider.empty())
    b.fail("prefillDeciderPluginName", "prefill decider is not supported in prefill-first stage order");
}

namespace {

// The first of the object's fields that is one of `names`.
const config::Node::Member* first_of(const config::Node* node, std::span<const std::string_view> names) {
  if (node == nullptr) return nullptr;
  for (const config::Node::Member& member : node->members) {
    for (const std::string_view name : names) {
      if (ascii_iequals(member.first, name)) return &member;
    }
  }
  return nullptr;
}

// Either form: the one that the fields are of.
Result<DisaggProfileHandler::Params> read_params(const config::Node* node, const std::string& path) {
  static constexpr std::array<std::string_view, 6> kFlat{"decodeProfile",     "prefillProfile",
                                                         "encodeProfile",     "prefillDeciderPluginName",
                                                         "deciderPluginName", "encodeDeciderPluginName"};
  static constexpr std::array<std::string_view, 2> kNested{"profiles", "deciders"};
  const config::Node::Member* flat = first_of(node, kFlat);
  const config::Node::Member* nested = first_of(node, kNested);
  if (flat != nullptr && nested != nullptr) {
    return config_error(
        path, fmt::format("{} (line {}) is of the older form, {} (line {}) of the newer: use "
                          "one format exclusively",
                          flat->first, flat->second.key_line, nested->first, nested->second.key_line));
  }
  DisaggProfileHandler::Params params;
  const Status read = config::decode_params(node, path, [&](config::Binder& b) {
    flat != nullptr ? DisaggProfileHandler::bind_flat(b, params) : DisaggProfileHandler::bind(b, params);
  });
  if (!read.ok()) return read.error();
  return params;
}

}  // namespace

std::vector<std::string> DisaggProfileHandler::references(const config::Node* parameters) {
  std::vector<std::string> out;
  const Result<Params> params = read_params(parameters, "parameters");
  if (!params.ok()) return out;
  for (const std::string& name : {params->prefill_decider, params->encode_decider}) {
    if (!name.empty()) out.push_back(name);
  }
  return out;
}

Result<std::unique_ptr<Plugin>> DisaggProfileHandler::create(const PluginFactoryContext& context) {
  Result<Params> params = read_params(context.parameters, context.path);
  if (!params.ok()) return std::move(params).error();
  const auto find = [&](const std::string& name) {
    return context.plugins == nullptr ? nullptr : context.plugins->find(name);
  };
  const PrefillDecider* prefill = nullptr;
  if (!params->prefill_decider.empty()) {
    const Plugin* plugin = find(params->prefill_decider);
    if (plugin == nullptr)
      return config_error(context.path, "deciders.prefill plugin not found: " + params->prefill_decider);
    prefill = dynamic_cast<const PrefillDecider*>(plugin);
    if (prefill == nullptr) {
      return config_error(context.path,
                          "plugin " + params->prefill_decider + " does not implement prefillDeciderPlugin");
    }
  }
  const EncodeDecider* encode = nullptr;
  if (!params->encode_decider.empty()) {
    const Plugin* plugin = find(params->encode_decider);
    if (plugin == nullptr)
      return config_error(context.path, "deciders.encode plugin not found: " + params->encode_decider);
    encode = dynamic_cast<const EncodeDecider*>(plugin);
    if (encode == nullptr) {
      return config_error(context.path,
                          "plugin " + params->encode_decider + " does not implement encodeDeciderPlugin");
    }
  }
  return std::unique_ptr<Plugin>(std::make_unique<DisaggProfileHandler>(
      std::move(params).value(), prefill, encode, context.name, context.metrics));
}

DisaggProfileHandler::DisaggProfileHandler(Params params, const PrefillDecider* prefill,
                                           const EncodeDecider* encode, std::string_view name,
                                           telemetry::MetricRegistry& metrics)
    : params_(std::move(params)),
      prefill_decider_(prefill),
      encode_decider_(encode),
      counters_(metrics, name, kType, false) {}

void DisaggProfileHandler::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(data_keys::kPrefixMatch);
  declaration.require<TokenizedPromptMarker>(data_keys::kTokenizedPrompt);
  // One key whatever the instance's name, so that topology plugins find it.
  declaration.produce<PeerEndpoint>(data_keys::kPeerEndpoint);
}

void DisaggProfileHandler::bind_slots(const SlotResolver& slots) {
  peer_slot_ = slots.slot(data_keys::kPeerEndpoint);
}

DisaggProfileHandler::Stages DisaggProfileHandler::find(std::span<const std::string> profile_names) const {
  return {index_of(profile_names, params_.decode_profile),
          index_of(profile_names, params_.stages.prefill_profile),
          index_of(profile_names, params_.stages.encode_profile)};
}

void DisaggProfileHandler::set_peer(SchedulingContext& ctx, Candidate peer) const {
  if (peer_slot_ != kNoSlot) ctx.attributes.create_value<PeerEndpoint>(peer_slot_)->endpoint = peer;
}

std::span<const uint32_t> DisaggProfileHandler::pick(SchedulingContext& ctx,
                                                     std::span<const std::string> profile_names,
                                                     std::span<bool> done,
                                                     std::span<const ProfileResult* const> results) const {
  const Stages stages = find(profile_names);
  const size_t none = profile_names.size();
  if (stages.decode == none) return {};
  const auto open = [&](size_t stage) { return stage != none && !done[stage]; };
  const auto wants_encode = [&] { return encode_decider_ != nullptr && encode_decider_->splits_encode(ctx); };

  if (params_.prefill_first) {
    if (done[stages.decode]) return {};
    if (open(stages.prefill)) return run(ctx, stages.prefill);
    if (open(stages.encode)) {
      if (wants_encode()) return run(ctx, stages.encode);
      done[stages.encode] = true;
    }
    if (stages.prefill != none && results[stages.prefill] != nullptr)
      set_peer(ctx, results[stages.prefill]->targets[0]);
    return run(ctx, stages.decode);
  }

  if (!done[stages.decode]) return run(ctx, stages.decode);
  const ProfileResult* decode = results[stages.decode];
  if (decode == nullptr || decode->targets.empty()) return {};
  if (open(stages.encode)) {
    if (wants_encode()) return run(ctx, stages.encode);
    done[stages.encode] = true;
  }
  if (open(stages.prefill)) {
    if (prefill_decider_ != nullptr && prefill_decider_->splits_prefill(ctx, decode->targets[0])) {
      set_peer(ctx, decode->targets[0]);
      return run(ctx, stages.prefill);
    }
    done[stages.prefill] = true;
  }
  return {};
}

Result<SchedulingResult> DisaggProfileHandler::process(SchedulingContext& ctx,
                                                       std::span<const std::string> profile_names,
                                                       std::span<const ProfileResult* const> results) const {
  const Stages stages = find(profile_names);
  if (stages.decode == results.size() || results[stages.decode] == nullptr) return kNoDecode;
  const auto ran = [&](size_t stage) { return stage != results.size() && results[stage] != nullptr; };
  counters_.count(ctx, ran(stages.encode), ran(stages.prefill));
  return SchedulingResult{collect(ctx, results, {stages.decode, stages.prefill, stages.encode}),
                          results[stages.decode], 0};
}

Status DisaggProfileHandler::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  params_.stages.apply(ctx, result);
  return {};
}

// --- pd-profile-handler -------------------------------------------------------------------------------

void PdProfileHandler::bind(config::Binder& b, Params& p) {
  b.field("decodeProfile", p.decode_profile, "", "Name of the decode profile.");
  b.field("prefillProfile", p.prefill_profile, "", "Name of the prefill profile.");
  b.field("prefixPluginType", p.prefix_plugin_type, "", "Ignored; accepted for older configurations.");
  b.field("prefixPluginName", p.prefix_plugin_name, "",
          "Must name a plugin where given; has no effect otherwise.");
  b.field("primaryPort", p.primary_port, "", "As of data-parallel-profile-handler; 0: off.");
  b.field("deciderPluginName", p.decider, "", "Name of the plugin that decides about prefill.");
  b.field("prefixMatchInfoProducerName", p.prefix_producer, "",
          "Name of the prefix cache producer that must exist; empty: approx-prefix-cache-producer.");
  if (b.describing()) return;
  check_primary_port(b, p.primary_port);
  if (p.decider.empty()) b.fail("deciderPluginName", "decider plugin name is not defined");
  if (p.prefix_plugin_name.empty()) p.prefix_plugin_name = p.prefix_plugin_type;
}

std::vector<std::string> PdProfileHandler::references(const config::Node* parameters) {
  Params params;
  if (!config::decode_params(parameters, "parameters", [&](config::Binder& b) { bind(b, params); }).ok())
    return {};
  std::vector<std::string> out{params.decider};
  if (!params.prefix_plugin_name.empty()) out.push_back(params.prefix_plugin_name);
  return out;
}

Result<std::unique_ptr<Plugin>> PdProfileHandler::create(Params params, const PluginFactoryContext& context) {
  const Plugin* plugin = context.plugins == nullptr ? nullptr : context.plugins->find(params.decider);
  const auto* decider = dynamic_cast<const PrefillDecider*>(plugin);
  if (decider == nullptr) return config_error(context.path, "invalid decider plugin type: " + params.decider);
  return std::unique_ptr<Plugin>(
      std::make_unique<PdProfileHandler>(std::move(params), *decider, context.name, context.metrics));
}

PdProfileHandler::PdProfileHandler(Params params, const PrefillDecider& decider, std::string_view name,
                                   telemetry::MetricRegistry& metrics)
    : params_(std::move(params)), decider_(decider), counters_(metrics, name, kType, true) {}

void PdProfileHandler::declare_data(DataDeclaration& declaration) const {
  declaration.require<PrefixMatch>(data_keys::kPrefixMatch.with_producer(params_.prefix_producer));
}

std::span<const uint32_t> PdProfileHandler::pick(SchedulingContext& ctx,
                                                 std::span<const std::string> profile_names,
                                                 std::span<bool> done,
                                                 std::span<const ProfileResult* const> results) const {
  const size_t none = profile_names.size();
  const size_t decode = index_of(profile_names, params_.decode_profile);
  const size_t prefill = index_of(profile_names, params_.prefill_profile);
  if (decode == none) return {};
  if (!done[decode]) return run(ctx, decode);
  if (results[decode] == nullptr || prefill == none || done[prefill]) return {};
  if (!decider_.splits_prefill(ctx, results[decode]->targets[0])) return {};
  return run(ctx, prefill);
}

Result<SchedulingResult> PdProfileHandler::process(SchedulingContext& ctx,
                                                   std::span<const std::string> profile_names,
                                                   std::span<const ProfileResult* const> results) const {
  const size_t decode = index_of(profile_names, params_.decode_profile);
  const size_t prefill = index_of(profile_names, params_.prefill_profile);
  if (decode == results.size() || results[decode] == nullptr) return kNoDecode;
  counters_.count(ctx, false, prefill != results.size() && results[prefill] != nullptr);
  return SchedulingResult{collect(ctx, results, {decode, prefill}), results[decode],
                          static_cast<uint16_t>(params_.primary_port)};
}

Status PdProfileHandler::pre_request(SchedulingContext& ctx, const SchedulingResult& result) const {
  if (params_.primary_port != 0) set_data_parallel_header(ctx, result);
  return {};
}

// --- disagg-headers-handler ---------------------------------------------------------------------------

void DisaggHeadersHandler::bind(config::Binder& b, Params& p) {
  b.field("prefillProfile", p.prefill_profile, "", "Name of the prefill profile.");
  b.field("encodeProfile", p.encode_profile, "", "Name of the encode profile.");
}

}  // namespace penstock::scheduling
