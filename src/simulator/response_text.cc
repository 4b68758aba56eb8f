#include "simulator/response_text.h"

#include <charconv>
#include <cmath>

#include "base/strings.h"

namespace penstock::simulator {
namespace {

void number(std::string& out, int64_t value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, end);
}

// As Python writes a float: with a fraction.
void real(std::string& out, double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  const std::string_view written(text, static_cast<size_t>(end - text));
  out += written;
  if (written.find_first_of(".en") == std::string_view::npos) out += ".0";
}

void tokens_or_null(std::string& out, bool wanted, std::span<const uint32_t> tokens) {
  if (!wanted) {
    out += "null";
    return;
  }
  out += '[';
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    number(out, tokens[i]);
  }
  out += ']';
}

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "\"stop\"";
    case FinishReason::kLength:
      return "\"length\"";
    case FinishReason::kAbort:
      return "\"abort\"";
    case FinishReason::kError:
      return "\"error\"";
    case FinishReason::kNone:
      break;
  }
  return "null";
}

void stop_or_null(std::string& out, std::string_view stop) {
  if (stop.empty())
    out += "null";
  else
    append_json_quoted(out, stop);
}

void usage_counts(std::string& out, const Usage& usage) {
  out += "{\"prompt_tokens\":";
  number(out, usage.prompt_tokens);
  out += ",\"total_tokens\":";
  number(out, usage.prompt_tokens + static_cast<int64_t>(usage.completion_tokens));
  out += ",\"completion_tokens\":";
  number(out, usage.completion_tokens);
}

bool counts_created(EngineApi api) {
  return api == EngineApi::kChat;
}

// Usage of a whole answer: nulls are written.
void unary_usage(std::string& out, const ResponseContext& context, const Usage& usage) {
  usage_counts(out, usage);
  out += ",\"prompt_tokens_details\":";
  if (context.prompt_tokens_details) {
    out += "{\"cached_tokens\":";
    number(out, usage.cached_tokens);
    out += ",\"created_cache_tokens\":";
    if (counts_created(context.api))
      number(out, usage.created_cache_tokens);
    else
      out += "null";
    out += ",\"multimodal_tokens\":null}";
  } else {
    out += "null";
  }
  out += ",\"completion_tokens_details\":null}";
}

// Usage of a stream's own usage event: nulls are left out.
void final_usage(std::string& out, const ResponseContext& context, const Usage& usage) {
  usage_counts(out, usage);
  if (context.prompt_tokens_details) {
    out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
    number(out, usage.cached_tokens);
    if (counts_created(context.api)) {
      out += ",\"created_cache_tokens\":";
      number(out, usage.created_cache_tokens);
    }
    out += '}';
  }
  out += '}';
}

void running_usage(std::string& out, const ResponseContext& context, const Usage& usage) {
  if (!context.continuous_usage) return;
  out += ",\"usage\":";
  usage_counts(out, usage);
  out += ",\"completion_tokens_details\":null}";
}

void fingerprint(std::string& out, const ResponseContext& context) {
  out += ",\"system_fingerprint\":";
  append_json_quoted(out, context.fingerprint);
}

void head(std::string& out, const ResponseContext& context, std::string_view object) {
  out += "{\"id\":";
  append_json_quoted(out, context.id);
  out += ",\"object\":\"";
  out += object;
  out += "\",\"created\":";
  number(out, context.created);
  out += ",\"model\":";
  append_json_quoted(out, context.model);
}

void event_head(std::string& out, const ResponseContext& context, std::string_view object) {
  out += "data: ";
  head(out, context, object);
}

// --- chat and completions ---

void chat_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                   const Usage& usage) {
  head(out, context, "chat.completion");
  out += ",\"choices\":[";
  for (const ChoiceText& choice : choices) {
    if (&choice != choices.data()) out += ',';
    out += "{\"index\":";
    number(out, choice.index);
    out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_json_quoted(out, choice.text);
    out +=
        ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},"
        "\"logprobs\":null,\"finish_reason\":";
    out += finish_name(choice.finish);
    out += ",\"stop_reason\":";
    stop_or_null(out, choice.stop);
    out += ",\"token_ids\":";
    tokens_or_null(out, context.return_token_ids, choice.tokens);
    out += ",\"routed_experts\":null}";
  }
  out += "],\"service_tier\":null";
  fingerprint(out, context);
  out += ",\"usage\":";
  unary_usage(out, context, usage);
  out += ",\"prompt_logprobs\":null,\"prompt_token_ids\":";
  tokens_or_null(out, context.return_token_ids, context.prompt_tokens);
  out += ",\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
}

void completion_response(std::string& out, const ResponseContext& context,
                         std::span<const ChoiceText> choices, const Usage& usage) {
  head(out, context, "text_completion");
  out += ",\"choices\":[";
  for (const ChoiceText& choice : choices) {
    if (&choice != choices.data()) out += ',';
    out += "{\"index\":";
    number(out, choice.index);
    out += ",\"text\":";
    append_json_quoted(out, choice.text);
    out += ",\"logprobs\":null,\"finish_reason\":";
    out += finish_name(choice.finish);
    out += ",\"stop_reason\":";
    stop_or_null(out, choice.stop);
    out += ",\"token_ids\":";
    tokens_or_null(out, context.return_token_ids, choice.tokens);
    out += ",\"prompt_logprobs\":null,\"prompt_token_ids\":";
    tokens_or_null(out, context.return_token_ids, context.prompt_tokens);
    out += ",\"routed_experts\":null}";
  }
  out += "],\"service_tier\":null";
  fingerprint(out, context);
  out += ",\"usage\":";
  unary_usage(out, context, usage);
  out += ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
}

void chat_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                const Usage& usage) {
  event_head(out, context, "chat.completion.chunk");
  out += ",\"choices\":[{\"index\":";
  number(out, choice.index);
  out += ",\"delta\":{\"content\":";
  append_json_quoted(out, choice.text);
  out += "},\"logprobs\":null,\"finish_reason\":";
  out += finish_name(choice.finish);
  if (choice.finish != FinishReason::kNone) {
    out += ",\"stop_reason\":";
    stop_or_null(out, choice.stop);
  }
  out += ",\"token_ids\":";
  tokens_or_null(out, context.return_token_ids, choice.tokens);
  out += "}]";
  running_usage(out, context, usage);
  if (choice.finish != FinishReason::kNone && !context.include_usage) fingerprint(out, context);
  out += "}\n\n";
}

void completion_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                      const Usage& usage) {
  event_head(out, context, "text_completion");
  out += ",\"choices\":[{\"index\":";
  number(out, choice.index);
  out += ",\"text\":";
  append_json_quoted(out, choice.text);
  out += ",\"logprobs\":null,\"finish_reason\":";
  out += finish_name(choice.finish);
  out += ",\"stop_reason\":";
  stop_or_null(out, choice.stop);
  out += ",\"prompt_token_ids\":null,\"token_ids\":";
  tokens_or_null(out, context.return_token_ids, choice.tokens);
  out += "}]";
  running_usage(out, context, usage);
  if (choice.finish != FinishReason::kNone && !context.include_usage) fingerprint(out, context);
  out += "}\n\n";
}

// --- /inference/v1/generate ---

void generate_choice(std::string& out, const ChoiceText& choice, uint32_t total, bool ended) {
  out += "{\"index\":";
  number(out, choice.index);
  out += ",\"finish_reason\":";
  out += finish_name(choice.finish);
  out += ",\"stop_reason\":";
  stop_or_null(out, choice.stop);
  out += ",\"token_ids\":";
  tokens_or_null(out, true, choice.tokens);
  out += ",\"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":";
  if (ended) {
    out += "[{\"version\":\"default\",\"start\":0,\"end\":";
    number(out, total);
    out += "}]";
  } else {
    out += "null";
  }
  out += ",\"logprobs\":null}";
}

void generate_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                       const Usage& usage) {
  out += "{\"request_id\":";
  append_json_quoted(out, context.id);
  out += ",\"model\":";
  append_json_quoted(out, context.model);
  out += ",\"created\":";
  number(out, context.created);
  out += ",\"usage\":";
  unary_usage(out, context, usage);
  out +=
      ",\"prompt_logprobs\":null,\"prompt_token_id_logprobs\":null,\"prompt_token_ids\":null,"
      "\"mm_placeholders\":null,\"metrics\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,"
      "\"output_mode\":\"tokens\",\"choices\":[";
  for (const ChoiceText& choice : choices) {
    if (&choice != choices.data()) out += ',';
    generate_choice(out, choice, static_cast<uint32_t>(choice.tokens.size()), true);
  }
  out += "]}";
}

void generate_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                    const Usage& usage) {
  out += "data: {\"request_id\":";
  append_json_quoted(out, context.id);
  out += ",\"usage\":null,\"output_mode\":\"tokens\",\"choices\":[";
  generate_choice(out, choice, usage.completion_tokens, choice.finish != FinishReason::kNone);
  out += "]}\n\n";
}

// --- /v1/messages ---

std::string_view anthropic_stop(const ChoiceText& choice) {
  if (!choice.stop.empty()) return "\"stop_sequence\"";
  return choice.finish == FinishReason::kLength ? "\"max_tokens\"" : "\"end_turn\"";
}

void messages_usage(std::string& out, const Usage& usage) {
  out += "{\"input_tokens\":";
  number(out, usage.prompt_tokens);
  out += ",\"output_tokens\":";
  number(out, usage.completion_tokens);
  out += ",\"cache_creation_input_tokens\":";
  number(out, usage.created_cache_tokens);
  out += ",\"cache_read_input_tokens\":";
  number(out, usage.cached_tokens);
  out += '}';
}

void messages_response(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                       const Usage& usage) {
  out += "{\"id\":";
  append_json_quoted(out, context.id);
  out += ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":";
  append_json_quoted(out, choice.text);
  out += "}],\"model\":";
  append_json_quoted(out, context.model);
  out += ",\"stop_reason\":";
  out += anthropic_stop(choice);
  if (!choice.stop.empty()) {
    out += ",\"stop_sequence\":";
    append_json_quoted(out, choice.stop);
  }
  out += ",\"usage\":";
  messages_usage(out, usage);
  out += '}';
}

void messages_start(std::string& out, const ResponseContext& context, const Usage& usage) {
  out += "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":";
  append_json_quoted(out, context.id);
  out += ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":";
  append_json_quoted(out, context.model);
  out += ",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":";
  number(out, usage.prompt_tokens);
  out +=
      ",\"output_tokens\":0}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\","
      "\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n";
}

void messages_delta(std::string& out, const ChoiceText& choice) {
  out +=
      "event: content_block_delta\ndata: "
      "{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\","
      "\"text\":";
  append_json_quoted(out, choice.text);
  out += "},\"index\":0}\n\n";
}

void messages_end(std::string& out, const ChoiceText& choice, const Usage& usage) {
  out +=
      "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
      "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":";
  out += anthropic_stop(choice);
  out += ",\"stop_sequence\":";
  stop_or_null(out, choice.stop);
  out += "},\"usage\":";
  messages_usage(out, usage);
  out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
}

// --- /v1/responses ---

void responses_item(std::string& out, const ResponseContext& context, std::string_view text) {
  out += "{\"id\":";
  append_json_quoted(out, context.item_id);
  out += ",\"content\":[{\"annotations\":[],\"text\":";
  append_json_quoted(out, text);
  out +=
      ",\"type\":\"output_text\",\"logprobs\":null}],\"role\":\"assistant\",\"status\":\"completed\","
      "\"type\":\"message\",\"phase\":null}";
}

void responses_object(std::string& out, const ResponseContext& context, const ChoiceText* choice,
                      const Usage& usage) {
  const bool cut = choice != nullptr && choice->finish == FinishReason::kLength;
  out += "{\"id\":";
  append_json_quoted(out, context.id);
  out += ",\"created_at\":";
  number(out, context.created);
  out += ",\"incomplete_details\":";
  out += cut ? "{\"reason\":\"max_output_tokens\"}" : "null";
  out += ",\"instructions\":null,\"metadata\":null,\"model\":";
  append_json_quoted(out, context.model);
  out += ",\"object\":\"response\",\"output\":[";
  if (choice != nullptr) responses_item(out, context, choice->text);
  out += "],\"parallel_tool_calls\":true,\"temperature\":";
  real(out, context.temperature);
  out += ",\"tool_choice\":\"none\",\"tools\":[],\"top_p\":";
  real(out, context.top_p);
  out += ",\"background\":false,\"max_output_tokens\":";
  number(out, context.max_tokens);
  out +=
      ",\"max_tool_calls\":null,\"previous_response_id\":null,\"prompt\":null,\"reasoning\":null,"
      "\"service_tier\":\"auto\",\"status\":";
  out += choice == nullptr ? "\"in_progress\"" : (cut ? "\"incomplete\"" : "\"completed\"");
  out += ",\"text\":null,\"top_logprobs\":null,\"truncation\":\"disabled\",\"usage\":";
  if (choice == nullptr) {
    out += "null";
  } else {
    out += "{\"input_tokens\":";
    number(out, usage.prompt_tokens);
    out += ",\"input_tokens_details\":{\"cached_tokens\":";
    number(out, usage.cached_tokens);
    out +=
        ",\"cache_write_tokens\":0,\"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]},"
        "\"output_tokens\":";
    number(out, usage.completion_tokens);
    out +=
        ",\"output_tokens_details\":{\"reasoning_tokens\":0,\"tool_output_tokens\":0,"
        "\"output_tokens_per_turn\":[],\"tool_output_tokens_per_turn\":[]},\"total_tokens\":";
    number(out, usage.prompt_tokens + static_cast<int64_t>(usage.completion_tokens));
    out += '}';
  }
  out +=
      ",\"user\":null,\"presence_penalty\":0.0,\"frequency_penalty\":0.0,\"kv_transfer_params\":null,"
      "\"ec_transfer_params\":null,\"input_messages\":null,\"output_messages\":null}";
}

void responses_tail(std::string& out, std::string_view type, uint32_t sequence) {
  out += ",\"sequence_number\":";
  number(out, sequence);
  out += ",\"type\":\"";
  out += type;
  out += "\"}\n\n";
}

void responses_event(std::string& out, std::string_view type) {
  out += "event: ";
  out += type;
  out += "\ndata: {";
}

void responses_start(std::string& out, const ResponseContext& context, const Usage& usage) {
  uint32_t sequence = 0;
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    responses_event(out, type);
    out += "\"response\":";
    responses_object(out, context, nullptr, usage);
    responses_tail(out, type, sequence++);
  }
  responses_event(out, "response.output_item.added");
  out += "\"item\":{\"id\":";
  append_json_quoted(out, context.item_id);
  out +=
      ",\"content\":[],\"role\":\"assistant\",\"status\":\"in_progress\",\"type\":\"message\",\"phase\":null}"
      ","
      "\"output_index\":0";
  responses_tail(out, "response.output_item.added", sequence++);
  responses_event(out, "response.content_part.added");
  out += "\"content_index\":0,\"item_id\":";
  append_json_quoted(out, context.item_id);
  out +=
      ",\"output_index\":0,\"part\":{\"annotations\":[],\"text\":\"\",\"type\":\"output_text\",\"logprobs\":["
      "]}";
  responses_tail(out, "response.content_part.added", sequence);
}

void responses_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                     uint32_t& sequence) {
  responses_event(out, "response.output_text.delta");
  out += "\"content_index\":0,\"delta\":";
  append_json_quoted(out, choice.text);
  out += ",\"item_id\":";
  append_json_quoted(out, context.item_id);
  out += ",\"logprobs\":[],\"output_index\":0";
  responses_tail(out, "response.output_text.delta", sequence++);
}

void responses_end(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                   const Usage& usage, uint32_t& sequence) {
  responses_event(out, "response.output_text.done");
  out += "\"content_index\":0,\"item_id\":";
  append_json_quoted(out, context.item_id);
  out += ",\"logprobs\":[],\"output_index\":0,\"sequence_number\":";
  number(out, sequence++);
  out += ",\"text\":";
  append_json_quoted(out, choice.text);
  out += ",\"type\":\"response.output_text.done\"}\n\n";

  responses_event(out, "response.content_part.done");
  out += "\"content_index\":0,\"item_id\":";
  append_json_quoted(out, context.item_id);
  out += ",\"output_index\":0,\"part\":{\"annotations\":[],\"text\":";
  append_json_quoted(out, choice.text);
  out += ",\"type\":\"output_text\",\"logprobs\":null}";
  responses_tail(out, "response.content_part.done", sequence++);

  responses_event(out, "response.output_item.done");
  out += "\"item\":";
  responses_item(out, context, choice.text);
  out += ",\"output_index\":0";
  responses_tail(out, "response.output_item.done", sequence++);

  responses_event(out, "response.completed");
  out += "\"response\":";
  responses_object(out, context, &choice, usage);
  responses_tail(out, "response.completed", sequence++);
}

}  // namespace

void append_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                     const Usage& usage) {
  switch (context.api) {
    case EngineApi::kCompletions:
      return completion_response(out, context, choices, usage);
    case EngineApi::kMessages:
      return messages_response(out, context, choices.front(), usage);
    case EngineApi::kResponses:
      return responses_object(out, context, &choices.front(), usage);
    case EngineApi::kGenerate:
      return generate_response(out, context, choices, usage);
    default:
      return chat_response(out, context, choices, usage);
  }
}

void append_stream_start(std::string& out, const ResponseContext& context, uint32_t choices,
                         const Usage& usage) {
  if (context.api == EngineApi::kMessages) return messages_start(out, context, usage);
  if (context.api == EngineApi::kResponses) return responses_start(out, context, usage);
  if (context.api != EngineApi::kChat) return;
  for (uint32_t index = 0; index < choices; ++index) {
    event_head(out, context, "chat.completion.chunk");
    out += ",\"choices\":[{\"index\":";
    number(out, index);
    out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]";
    Usage none = usage;
    none.completion_tokens = 0;
    running_usage(out, context, none);
    out += ",\"prompt_token_ids\":";
    tokens_or_null(out, context.return_token_ids, context.prompt_tokens);
    out += ",\"prompt_text\":null}\n\n";
  }
}

void append_stream_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                         const Usage& usage, uint32_t& sequence) {
  switch (context.api) {
    case EngineApi::kCompletions:
      return completion_delta(out, context, choice, usage);
    case EngineApi::kMessages:
      return messages_delta(out, choice);
    case EngineApi::kResponses:
      return responses_delta(out, context, choice, sequence);
    case EngineApi::kGenerate:
      return generate_delta(out, context, choice, usage);
    default:
      return chat_delta(out, context, choice, usage);
  }
}

void append_stream_end(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                       const Usage& usage, uint32_t& sequence) {
  if (context.api == EngineApi::kMessages) return messages_end(out, choice, usage);
  if (context.api == EngineApi::kResponses) return responses_end(out, context, choice, usage, sequence);
  if (context.include_usage && context.api != EngineApi::kGenerate) {
    event_head(out, context, context.api == EngineApi::kChat ? "chat.completion.chunk" : "text_completion");
    out += ",\"choices\":[],\"usage\":";
    final_usage(out, context, usage);
    fingerprint(out, context);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void append_error(std::string& out, EngineApi api, const ApiError& error) {
  if (api == EngineApi::kMessages || api == EngineApi::kCountTokens) {
    out += "{\"type\":\"error\",\"error\":{\"type\":";
    append_json_quoted(out, error.type);
    out += ",\"message\":";
    append_json_quoted(out, error.message);
    out += "}}";
    return;
  }
  out += "{\"error\":{\"message\":";
  append_json_quoted(out, error.message);
  out += ",\"type\":";
  append_json_quoted(out, error.type);
  out += ",\"param\":";
  if (error.param.empty())
    out += "null";
  else
    append_json_quoted(out, error.param);
  out += ",\"code\":";
  number(out, error.status);
  out += "}}";
}

}  // namespace penstock::simulator
