// SPDX-License-Identifier: Apache-2.0
#include "index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <numeric>

#include "io/npy.h"
#include "io/progress.h"

namespace sentence_search {
namespace {

constexpr std::size_t kBatchTokens = 4096;  // enough for every thread to have work, little enough to stop in time

}  // namespace

std::vector<Hit> Index::nearest(const std::vector<float>& query, std::size_t count) const {
  std::vector<Hit> hits;
  hits.reserve(passages.size());
  for (std::size_t i = 0; i < passages.size(); ++i) {
    const auto row = embeddings.begin() + static_cast<std::ptrdiff_t>(i * query.size());
    hits.push_back({passages[i], std::inner_product(query.begin(), query.end(), row, 0.0F)});
  }
  const auto kept = hits.begin() + static_cast<std::ptrdiff_t>(std::min(count, hits.size()));
  std::partial_sort(hits.begin(), kept, hits.end(), [](const Hit& a, const Hit& b) { return a.score > b.score; });
  hits.erase(kept, hits.end());
  return hits;
}

std::size_t encoding_order(std::size_t visit, std::size_t passages) {
  // Steps of the golden section leave no part of the text unvisited for long; a step that shares no factor with the
  // number of passages comes to all of them.
  auto step = std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(passages) / std::numbers::phi));
  while (std::gcd(step, passages) != 1) ++step;
  return visit * step % passages;
}

strobe::Result<Index> build_index(const Encoder& encoder, const Tokenizer& tokenizer,
                                  const std::vector<Passage>& passages, double budget_seconds) {
  const auto start = std::chrono::steady_clock::now();
  Index index;
  strobe::io::Progress progress("encoding", static_cast<std::int64_t>(passages.size()), "passages");
  double batch_seconds = 0.0;
  while (index.passages.size() < passages.size() && index.seconds + batch_seconds <= budget_seconds) {
    TokenBatch batch;
    while (batch.tokens() < kBatchTokens && index.passages.size() < passages.size()) {
      const std::size_t passage = encoding_order(index.passages.size(), passages.size());
      batch.append(tokenizer.encode(passages[passage].text, encoder.config().max_seqlen));
      index.passages.push_back(passage);
    }
    const strobe::Result<std::vector<float>> embeddings = encoder.encode(batch);
    if (!embeddings.ok()) return embeddings.status();
    index.embeddings.insert(index.embeddings.end(), embeddings->begin(), embeddings->end());
    index.tokens += batch.tokens();

    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    batch_seconds = seconds - index.seconds;
    index.seconds = seconds;
    const auto done = static_cast<double>(index.passages.size());
    const double fits = std::min(static_cast<double>(passages.size()), done * budget_seconds / seconds);
    progress.update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(std::max(done, fits)));
  }
  const auto encoded = static_cast<std::int64_t>(index.passages.size());
  progress.update(encoded, encoded);
  return index;
}

strobe::Result<Index> load_index(const std::filesystem::path& path, std::size_t passages, std::size_t hidden_size) {
  const strobe::Result<strobe::io::HostTensor> tensor = strobe::io::read_npy(path);
  if (!tensor.ok()) return tensor.status();
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(passages), static_cast<std::int64_t>(hidden_size)};
  if (tensor->dtype != strobe::DType::float32 || tensor->shape != shape) {
    return strobe::Status(
        strobe::StatusCode::invalid_argument,
        fmt::format("'{}' holds {} [{}]; embeddings of this text are float32 [{}]", path.string(),
                    strobe::name_of(tensor->dtype), fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
  }
  Index index;
  index.passages.resize(passages);
  std::iota(index.passages.begin(), index.passages.end(), std::size_t{0});
  index.embeddings.resize(passages * hidden_size);
  std::memcpy(index.embeddings.data(), tensor->bytes.data(), tensor->bytes.size());
  return index;
}

}  // namespace sentence_search
