#include "simulator/engine_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "simulator/flag_values.h"

namespace penstock::simulator {

void bind(config::Binder& b, EngineFlags& o) {
  b.field("profile", o.profile, "",
          fmt::format("Measured step times: {}; \"{}\" or empty: the two rates below.",
                      fmt::join(StepTime::profile_names(), " or "), kRates));
  b.field("prefill-tokens-per-second", o.prefill_tokens_per_second, "tokens/s",
          "Prefill speed without a profile; 0: no time at all.");
  b.field("decode-ms", o.decode_ms, "ms", "Length of a step without prefill, without a profile.");
  b.field("block-size", o.block_size, "tokens", "Tokens of a KV cache block.");
  b.field("num-blocks", o.num_blocks, "blocks", "KV cache blocks of an engine; one is reserved.");
  b.field("max-num-seqs", o.max_num_seqs, "requests", "Sequences running at once on an engine.");
  b.field("max-num-batched-tokens", o.max_num_batched_tokens, "tokens",
          "Tokens of one step; longer prompts are chunked.");
  b.field("max-model-len", o.max_model_len, "tokens",
          "Longest prompt and answer together; at most what the blocks hold.");
  b.field("max-loras", o.max_loras, "adapters", "Distinct adapters in one step.");
  b.field("max-cpu-loras", o.max_cpu_loras, "adapters",
          "Adapters kept in host memory; 0: as many as max-loras.");
  b.field("lora-load-time", o.lora_load_time, "", "Time to bring an adapter from host memory to the GPU.");
  b.field("lora-cold-load-time", o.lora_cold_load_time, "",
          "Time to bring an adapter from disk to host memory.");
  b.field("no-prefix-caching", o.no_prefix_caching, "", "Switch the engines' prefix reuse off.");

  if (o.prefill_tokens_per_second != 0)
    within(b, "prefill-tokens-per-second", o.prefill_tokens_per_second, 1, 1e9);
  within(b, "decode-ms", o.decode_ms, 0, 1e6);
  within(b, "block-size", o.block_size, 1, 4096);
  within(b, "num-blocks", o.num_blocks, 2, 1 << 24);
  within(b, "max-num-seqs", o.max_num_seqs, 1, 1 << 20);
  within(b, "max-num-batched-tokens", o.max_num_batched_tokens, 1, 1 << 26);
  within(b, "max-model-len", o.max_model_len, 2, 1 << 26);
  within(b, "max-loras", o.max_loras, 0, 1024);
  within(b, "max-cpu-loras", o.max_cpu_loras, 0, 1 << 20);
  within(b, "lora-load-time", o.lora_load_time, Duration::zero(), std::chrono::hours(24));
  within(b, "lora-cold-load-time", o.lora_cold_load_time, Duration::zero(), std::chrono::hours(24));
}

void check_blocks_in_all(config::Binder& b, const EngineFlags& o, int64_t engines) {
  if (engines > 0 && o.num_blocks > 0 && engines > kMaxBlocksInAll / o.num_blocks) {
    b.fail("num-blocks", fmt::format("{} engines of {} blocks are more than {} blocks in all", engines,
                                     o.num_blocks, kMaxBlocksInAll));
  }
}

Result<EngineModel::Options> engine_options(const EngineFlags& o) {
  EngineModel::Options out;
  out.block_size = static_cast<uint32_t>(o.block_size);
  out.num_blocks = static_cast<uint32_t>(o.num_blocks);
  out.max_sequences = static_cast<uint32_t>(o.max_num_seqs);
  out.max_batched_tokens = static_cast<uint32_t>(o.max_num_batched_tokens);
  out.max_model_len = static_cast<uint32_t>(o.max_model_len);
  out.max_adapters = static_cast<uint32_t>(o.max_loras);
  out.max_host_adapters = static_cast<uint32_t>(o.max_cpu_loras);
  out.adapter_load = o.lora_load_time;
  out.adapter_cold_load = o.lora_cold_load_time;
  out.prefix_caching = !o.no_prefix_caching;
  out.step_time = StepTime(o.decode_ms, o.prefill_tokens_per_second);
  if (!o.profile.empty() && o.profile != kRates) {
    Result<StepTime> profile = StepTime::profile(o.profile);
    if (!profile.ok()) return profile.error().wrap("--profile");
    out.step_time = *profile;
  }
  return out;
}

}  // namespace penstock::simulator
