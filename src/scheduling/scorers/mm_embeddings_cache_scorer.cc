#include "scheduling/scorers/mm_embeddings_cache_scorer.h"

#include <algorithm>

#include "scheduling/number_text.h"

namespace penstock::scheduling {

void MmEmbeddingsCacheScorer::bind(config::Binder& b, Params& p) {
  b.field("producerName", p.producer, "",
          "Name of the mm-embeddings-cache-producer to read; empty: the default one.");
}

void MmEmbeddingsCacheScorer::declare_data(DataDeclaration& declaration) const {
  declaration.require<MultiModalMatch>(key_);
}

void MmEmbeddingsCacheScorer::score(SchedulingContext& ctx, std::span<const Candidate> candidates,
                                    std::span<double> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0);
  const std::span<const MultiModalMatch> column = ctx.attributes.column<MultiModalMatch>(slot_);
  if (column.empty()) return;
  for (size_t i = 0; i < scores.size(); ++i) {
    const MultiModalMatch& match = column[candidates[i]];
    if (match.request_items > 0)
      scores[i] = static_cast<double>(match.matched_items) / static_cast<double>(match.request_items);
  }
}

void MmEmbeddingsCacheScorer::explain(const SchedulingContext& ctx, Candidate candidate,
                                      std::string& out) const {
  const std::span<const MultiModalMatch> column = ctx.attributes.column<MultiModalMatch>(slot_);
  if (column.empty() || column[candidate].request_items == 0) {
    out += "the prompt has no media items";
    return;
  }
  out += "media ";
  append_number(out, uint64_t{column[candidate].matched_items});
  out += " of ";
  append_number(out, uint64_t{column[candidate].request_items});
  out += " items";
}

}  // namespace penstock::scheduling
