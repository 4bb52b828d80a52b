// SPDX-License-Identifier: Apache-2.0
// Searches a text by meaning: encodes its passages and the queries, and prints the nearest passages.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comparison.h"
#include "encoder.h"
#include "index.h"
#include "io/printable.h"
#include "passages.h"
#include "report.h"
#include "strobe/status.h"
#include "tokenizer.h"

namespace sentence_search {
namespace {

constexpr int kFailure = 1;  // exit codes
constexpr int kUsage = 2;

struct Options {
  std::vector<std::string> queries = {"a shepherd cares for his sheep", "forgive those who have wronged you",
                                      "a storm at sea"};
  std::filesystem::path model = SENTENCE_SEARCH_MODEL;
  std::filesystem::path text;
  std::filesystem::path embeddings;
  bool print_passages = false;
  int seconds = 60;
  bool all = false;
  std::size_t top = 3;
  std::size_t comparison_tokens = 16384;
  Operands operands = Operands::float32;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
};

std::string failure_message(const CLI::App*, const CLI::Error& error) {
  return fmt::format("sentence_search: {} (see sentence_search --help)\n", strobe::io::printable(error.what()));
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("query", options.queries, "what to look for, in your own words")->type_name("TEXT");
  app.add_option("--text", options.text, "search the lines of this file instead of the King James Bible");
  app.add_option("--seconds", options.seconds, "encode as much of the text as fits into this time")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_flag("--all", options.all, "encode the whole text, however long it takes");
  app.add_option("--embeddings", options.embeddings, "the text encoded before, by gpu_encoder.py")
      ->check(CLI::ExistingFile);
  app.add_flag("--print-passages", options.print_passages, "print the text, a passage on a line, and search nothing");
  app.add_option("--top", options.top, "passages to print for each query")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--comparison-tokens", options.comparison_tokens,
                 "sequence length of the comparison with standard attention; 0 leaves it out")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  const std::map<std::string, Operands> operands = {{"float32", Operands::float32},
                                                    {"bfloat16", Operands::bfloat16},
                                                    {"int8", Operands::int8},
                                                    {"float8_e4m3", Operands::float8_e4m3}};
  app.add_option("--operands", options.operands, "what attention multiplies: float32, bfloat16, int8 or float8_e4m3")
      ->transform(CLI::CheckedTransformer(operands).description(""))
      ->type_name("NAME");
  app.add_option("--threads", options.threads, "threads to work with")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--model", options.model, "folder of the encoder, as scripts/fetch-model.sh makes it")
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  sentence_search \"do not be afraid\" \"a wedding feast\"\n"
      "  sentence_search --all --top 10 \"the end of the world\"\n"
      "  sentence_search --text notes.txt \"when is the meeting\"");
}

strobe::Status answer(const Encoder& encoder, const Tokenizer& tokenizer, const Index& index,
                      const std::vector<Passage>& passages, const Options& options, const Report& report) {
  for (const std::string& query : options.queries) {
    TokenBatch batch;
    batch.append(tokenizer.encode(query, encoder.config().max_seqlen));
    const strobe::Result<std::vector<float>> embedding = encoder.encode(batch);
    if (!embedding.ok()) return embedding.status();
    report.print_hits(query, index.nearest(*embedding, options.top), passages);
  }
  return {};
}

strobe::Result<Index> index_of(const Encoder& encoder, const Tokenizer& tokenizer, const std::vector<Passage>& passages,
                               const Options& options) {
  if (!options.embeddings.empty()) {
    return load_index(options.embeddings, passages.size(), encoder.config().hidden_size);
  }
  const double budget = options.all ? std::numeric_limits<double>::infinity() : static_cast<double>(options.seconds);
  return build_index(encoder, tokenizer, passages, budget);
}

strobe::Result<std::vector<Passage>> read_passages(const Options& options) {
  return options.text.empty() ? read_bible() : read_lines(options.text);
}

strobe::Status print_passages(const Options& options) {
  const auto passages = read_passages(options);
  if (!passages.ok()) return passages.status();
  for (const Passage& passage : *passages) fmt::print("{}\n", passage.text);
  return {};
}

strobe::Status search(const Options& options) {
  if (!std::filesystem::exists(options.model)) {
    return {strobe::StatusCode::invalid_argument,
            fmt::format("there is no model in '{}'; scripts/fetch-model.sh downloads it", options.model.string())};
  }
  strobe::Result<Model> model = Model::load(options.model);
  if (!model.ok()) return model.status();
  const strobe::Result<Tokenizer> tokenizer = Tokenizer::load(options.model / "vocab.txt");
  if (!tokenizer.ok()) return tokenizer.status();
  const auto passages = read_passages(options);
  if (!passages.ok()) return passages.status();
  const Encoder encoder(std::move(*model), options.threads, options.operands);

  const Report report;
  report.print_title(fmt::format("Search {} by meaning", options.text.empty()
                                                             ? "the King James Bible"
                                                             : strobe::io::printable(options.text.string())));
  const strobe::Result<Index> index = index_of(encoder, *tokenizer, *passages, options);
  if (!index.ok()) return index.status();
  report.print_index(*index, passages->size());
  if (strobe::Status status = answer(encoder, *tokenizer, *index, *passages, options, report); !status.ok())
    return status;

  if (options.comparison_tokens == 0) return {};
  const std::size_t seqlen = std::min(options.comparison_tokens, longest_comparison());
  const auto comparison = compare(encoder, *tokenizer, *passages, seqlen, options.threads);
  if (!comparison.ok()) return comparison.status();
  report.print_comparison(*comparison, options.comparison_tokens, options.threads);
  return {};
}

int run(int argc, char** argv) {
  CLI::App app("Searches the King James Bible, or a text of yours, by meaning, with a trained sentence encoder.");
  Options options;
  add_options(app, options);
  app.failure_message(failure_message);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;  // --help arrives here too, with exit code 0
  }
  const strobe::Status status = options.print_passages ? print_passages(options) : search(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "sentence_search: {}\n", strobe::io::printable(status.message()));
  return kFailure;
}

}  // namespace
}  // namespace sentence_search

int main(int argc, char** argv) {
  try {
    return sentence_search::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "sentence_search: {}\n", strobe::io::printable(error.what()));
    return sentence_search::kFailure;
  }
}
