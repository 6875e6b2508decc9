#include "src/model/forward.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace samara::model {
namespace {

using kernels::kKeyBlock;
using kernels::kRowGroup;
using kernels::Matrix;

// Tokens multiplied together: their quantised vectors stay in the second-level cache while weights stream past.
constexpr int kTokenTile = 64;
// Query rows that are worth a vector of 16 lanes: fewer go token by token.
constexpr int kMinQueryRows = 9;
// Row groups that meet both terms of the activations while they are in the second-level cache.
constexpr int kSecondTermGroups = 16;
// Rows handled by the calling thread alone: waking the pool costs more than two short vectors.
constexpr int kInlineRows = 2;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

int row_groups(const Matrix& m) { return ceil_div(m.rows, kRowGroup); }

// Row groups a task takes: about eight tasks a thread, so that a slow core does not hold up a fast one, yet long
// enough streams (four groups are 32 KiB of ternary weights).
int chunk_for(int groups, int threads) { return std::max(4, ceil_div(groups, threads * 8)); }

// Floats of kernels::QueryRows' arrays for one thread.
int64_t query_rows_size(int head_dim) {
    return int64_t{kernels::kQueryRows} * (2 * head_dim + 4) + kernels::attend_rows_scratch(head_dim);
}

// Key blocks of each KV head whose results are kept at a time where threads outnumber the KV heads: 4,096 keys.
constexpr int kBlocksKept = 64;

// Places that block_result gives: two a thread, or a total and kBlocksKept a KV head.
int64_t block_results(const ModelConfig& c, int threads) {
    const int64_t kept = threads > c.kv_heads ? int64_t{c.kv_heads} * (kBlocksKept + 1) : 0;
    return std::max(2 * int64_t{threads}, kept);
}

// What Forward::unhidden_ holds for an expert whose hidden vectors could not be made.
constexpr int kNotFinite = -1;

Error not_finite(int layer, const char* where) {
    return {ErrorCode::kNumeric, "layer " + std::to_string(layer) + ": the activations " + where + " are not finite"};
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// The forward pass. Read from here.

void Forward::run(std::span<const SequenceInput> inputs, const LogitsSink& sink) {
    lap_start_ = std::chrono::steady_clock::now();
    gather(inputs);
    embed();
    for (int layer = 0; layer < config_.layers; ++layer) {
        for (const SequenceInput& in : inputs) {
            if (in.cancelled != nullptr && in.cancelled->load(std::memory_order_relaxed)) {
                throw Error(ErrorCode::kCancelled, "the step was cancelled");
            }
        }
        attention(layer, inputs);
        if (config_.experts > 0) {
            experts(layer, inputs);
        } else {
            dense(layer);
        }
    }
    logits(inputs, sink);
    lap(seconds_.head);
}

// The rows of the step: every token with its absolute position and that position's rotation.
void Forward::gather(std::span<const SequenceInput> inputs) {
    tokens_.clear();
    wanted_.clear();
    queries_.clear();
    const int together = std::max(1, kernels::kQueryRows / (config_.heads / config_.kv_heads));
    for (size_t i = 0; i < inputs.size(); ++i) {
        for (size_t j = 0; j < inputs[i].tokens.size(); ++j) {
            if (static_cast<int>(j) >= inputs[i].logits_from) wanted_.push_back(static_cast<int>(tokens_.size()));
            tokens_.push_back(
                {inputs[i].tokens[j], static_cast<int>(i), inputs[i].kv->length() + static_cast<int64_t>(j)});
        }
        const auto end = static_cast<int>(tokens_.size());
        for (int t = end - static_cast<int>(inputs[i].tokens.size()); t < end; t += together)
            queries_.push_back({t, std::min(together, end - t)});
    }
    n_ = static_cast<int>(tokens_.size());
    const int64_t pairs = config_.rope_dims / 2;
    each_row(n_, [&](int t) {
        kernels::rope_angles(tokens_[static_cast<size_t>(t)].position, inverse_frequencies_, b_.cos + t * pairs,
                             b_.sin + t * pairs);
    });
}

void Forward::embed() {
    each_row(n_, [&](int t) {
        weights_.embed(tokens_[static_cast<size_t>(t)].id, b_.residual + int64_t{t} * config_.hidden);
    });
}

// residual += wo * attend(rope(norm(q)), rope(norm(k)), v), q k v = w * rms_norm(residual)
void Forward::attention(int layer, std::span<const SequenceInput> inputs) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    norm(w.attn_norm);
    quantise_rows(b_.normed, n_, layer, "entering attention");
    const int64_t stride = config_.q_rows() + 2 * int64_t{config_.kv_rows()};
    multiply(b_.normed, n_,
             {{&w.wq, b_.qkv, stride},
              {&w.wk, b_.qkv + config_.q_rows(), stride},
              {&w.wv, b_.qkv + config_.q_rows() + config_.kv_rows(), stride}});
    each_row(n_, [&](int t) { position_and_store(layer, t, inputs); });
    lap(seconds_.attention);
    const auto groups = static_cast<int>(queries_.size());  // neighbouring tasks read one head's keys
    if (n_ == 1 && pool_.size() > config_.kv_heads) {
        attend_in_pieces(layer, inputs);
    } else {
        pool_.run(groups * config_.kv_heads, [&](int task, int thread) {
            attend(layer, queries_[static_cast<size_t>(task % groups)], task / groups, thread, inputs);
        });
    }
    lap(seconds_.kv);
    quantise_rows(b_.attended, n_, layer, "leaving attention");
    multiply(b_.attended, n_, {{&w.wo, b_.projected, config_.hidden}});
    add_projected();
    lap(seconds_.attention);
}

// Norms each query and key head, rotates it where this layer has positions, and writes key and value to the cache.
void Forward::position_and_store(int layer, int t, std::span<const SequenceInput> inputs) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    const int dim = config_.head_dim;
    const int pairs = config_.rope_dims / 2;
    float* q = b_.qkv + t * (config_.q_rows() + 2 * int64_t{config_.kv_rows()});
    float* k = q + config_.q_rows();
    const float* v = k + config_.kv_rows();
    const auto prepare = [&](float* head, const float* weight) {
        if (weight != nullptr) kernels_.rms_norm(head, weight, dim, config_.norm_epsilon, head);
        if (config_.rotates(layer)) {
            kernels_.rope(head, b_.cos + int64_t{t} * pairs, b_.sin + int64_t{t} * pairs, pairs,
                          config_.rope_interleaved);
        }
    };
    for (int h = 0; h < config_.heads; ++h) prepare(q + int64_t{h} * dim, w.q_norm);

    const Token& token = tokens_[static_cast<size_t>(t)];
    for (int h = 0; h < config_.kv_heads; ++h) {
        prepare(k + int64_t{h} * dim, w.k_norm);
        const auto slot = inputs[static_cast<size_t>(token.input)].kv->slot(layer, h, token.position);
        const auto store = [&](const float* x, void* to, float* scale) {
            if (inputs[static_cast<size_t>(token.input)].kv->type() == kernels::KvType::kInt8)
                return kernels_.quantise_bytes(x, dim, static_cast<int8_t*>(to), scale);
            kernels::QuantisedRow row;
            row.q = static_cast<int16_t*>(to);
            row.scale = scale;
            return kernels_.quantise(x, dim, dim, row);
        };
        if (!store(k + int64_t{h} * dim, slot.k, slot.k_scale) || !store(v + int64_t{h} * dim, slot.v, slot.v_scale)) {
            throw Error(ErrorCode::kNumeric, "layer " + std::to_string(layer) + ": a key or value is not finite");
        }
    }
}

// The first key that the token at `position` sees.
int64_t Forward::first_key(int layer, int64_t position) const {
    const bool sliding = config_.sliding[static_cast<size_t>(layer)];
    return sliding ? std::max<int64_t>(0, position - config_.window + 1) : 0;
}

// The query heads of neighbouring tokens that share KV head `kv_head`, over the keys that any of them sees.
void Forward::attend(int layer, const QueryGroup& group, int kv_head, int thread,
                     std::span<const SequenceInput> inputs) {
    const int heads = config_.heads / config_.kv_heads;
    const int dim = config_.head_dim;
    const int count = group.count * heads;
    if (count < kMinQueryRows || count > kernels::kQueryRows) {
        for (int t = group.first; t < group.first + group.count; ++t) attend_token(layer, t, kv_head, thread, inputs);
        return;
    }
    float* next = b_.query_rows + thread * query_rows_size(dim);
    const auto take = [&](int64_t width) {
        float* taken = next;
        next += kernels::kQueryRows * width;
        return taken;
    };
    float* q = take(dim);
    float* begin = take(1);
    float* end = take(1);
    kernels::QueryRows rows{count, q, begin, end, take(1), take(1), take(dim), next};
    std::fill_n(q, kernels::kQueryRows * dim, 0.0F);
    std::fill_n(rows.max, kernels::kQueryRows, -std::numeric_limits<float>::infinity());
    std::fill_n(rows.sum, kernels::kQueryRows, 0.0F);
    std::fill_n(rows.out, kernels::kQueryRows * dim, 0.0F);
    const int64_t stride = config_.q_rows() + 2 * int64_t{config_.kv_rows()};
    for (int r = 0; r < count; ++r) {
        const float* head = b_.qkv + (group.first + r / heads) * stride + int64_t{kv_head * heads + r % heads} * dim;
        for (int d = 0; d < dim; ++d) q[(d % 16 * (dim / 16) + d / 16) * kernels::kQueryRows + r] = head[d];
    }

    const Token& token = tokens_[static_cast<size_t>(group.first)];
    const memory::KvSequence& kv = *inputs[static_cast<size_t>(token.input)].kv;
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    const int64_t first = first_key(layer, token.position);
    const int64_t last = token.position + group.count;
    for (int64_t block = first / kKeyBlock; block * kKeyBlock < last; ++block) {
        const int64_t start = block * kKeyBlock;
        const auto within = [&](int64_t key) {
            return static_cast<int>(std::clamp<int64_t>(key - start, 0, kKeyBlock));
        };
        for (int r = 0; r < kernels::kQueryRows; ++r) {
            const int64_t position = token.position + r / heads;
            begin[r] = static_cast<float>(within(first_key(layer, position)));
            end[r] = r < count ? static_cast<float>(within(position + 1)) : 0;
        }
        kernels_.attend_rows(rows, dim, scale, kv.block(layer, kv_head, block), within(first), within(last));
    }
    for (int t = 0; t < group.count; ++t) {
        const int64_t r = int64_t{t} * heads;
        kernels_.finish_attention({rows.max + r, rows.sum + r, rows.out + r * dim}, heads, dim,
                                  b_.attended.row(group.first + t) + kv_head * heads * dim);
    }
}

// One token's query heads that share KV head `kv_head`, over the keys they see, block by block in ascending order.
void Forward::attend_token(int layer, int t, int kv_head, int thread, std::span<const SequenceInput> inputs) {
    const int dim = config_.head_dim;
    const int group = config_.heads / config_.kv_heads;
    const kernels::BlockResult total = block_result(2 * int64_t{thread});
    const kernels::BlockResult next = block_result(2 * int64_t{thread} + 1);
    const int64_t position = tokens_[static_cast<size_t>(t)].position;
    const int64_t first = first_key(layer, position) / kKeyBlock;
    const int64_t last = position / kKeyBlock;
    for (int64_t block = first; block <= last; ++block) {
        attend_block(layer, t, kv_head, block, block < last, inputs, block == first ? total : next);
        if (block != first) kernels_.merge_blocks(total, next, group, dim);
    }
    kernels_.finish_attention(total, group, dim, b_.attended.row(t) + int64_t{kv_head} * group * dim);
}

// The same for a step's only token where threads outnumber the KV heads: pieces of a head's keys in parallel. Results
// are kept and merged in the same order, kBlocksKept blocks at a time.
void Forward::attend_in_pieces(int layer, std::span<const SequenceInput> inputs) {
    constexpr int kPieceBlocks = 4;
    const int dim = config_.head_dim;
    const int group = config_.heads / config_.kv_heads;
    const int64_t position = tokens_[0].position;
    const int64_t first = first_key(layer, position) / kKeyBlock;
    const int64_t end = position / kKeyBlock + 1;
    for (int64_t begin = first; begin < end; begin += kBlocksKept) {
        const int blocks = static_cast<int>(std::min<int64_t>(kBlocksKept, end - begin));
        const int pieces = ceil_div(blocks, kPieceBlocks);
        const auto result = [&](int kv_head, int i) { return block_result(int64_t{kv_head} * kBlocksKept + i); };
        pool_.run(pieces * config_.kv_heads, [&](int task, int) {
            const int kv_head = task / pieces;
            const int from = task % pieces * kPieceBlocks;
            const int to = std::min(from + kPieceBlocks, blocks);
            for (int i = from; i < to; ++i)
                attend_block(layer, 0, kv_head, begin + i, i + 1 < to, inputs, result(kv_head, i));
        });
        pool_.run(config_.kv_heads, [&](int kv_head, int) {
            const kernels::BlockResult total = block_result(int64_t{config_.kv_heads} * kBlocksKept + kv_head);
            for (int i = 0; i < blocks; ++i) {
                const kernels::BlockResult part = result(kv_head, i);
                if (begin + i == first) {
                    std::copy_n(part.max, group * (dim + 2), total.max);
                } else {
                    kernels_.merge_blocks(total, part, group, dim);
                }
            }
            if (begin + blocks == end)
                kernels_.finish_attention(total, group, dim, b_.attended.row(0) + int64_t{kv_head} * group * dim);
        });
    }
}

// One token's query heads that share KV head `kv_head`, over those keys of a block that they see.
void Forward::attend_block(int layer, int t, int kv_head, int64_t block, bool fetch_next,
                           std::span<const SequenceInput> inputs, const kernels::BlockResult& out) {
    const Token& token = tokens_[static_cast<size_t>(t)];
    const memory::KvSequence& kv = *inputs[static_cast<size_t>(token.input)].kv;
    const int dim = config_.head_dim;
    const int group = config_.heads / config_.kv_heads;
    const float* q = b_.qkv + t * (config_.q_rows() + 2 * int64_t{config_.kv_rows()}) + int64_t{kv_head} * group * dim;
    const int64_t start = block * kKeyBlock;
    kernels::KvBlock keys = kv.block(layer, kv_head, block);
    if (fetch_next)
        keys.next = static_cast<const char*>(kv.block(layer, kv_head, block + 1).k) - static_cast<const char*>(keys.k);
    const int64_t begin = std::max(first_key(layer, token.position), start) - start;
    const int64_t end = std::min(token.position + 1 - start, int64_t{kKeyBlock});
    kernels_.attend_block(q, group, dim, 1.0F / std::sqrt(static_cast<float>(dim)), keys, static_cast<int>(begin),
                          static_cast<int>(end), out);
}

// A place for one block's attention before it is merged.
kernels::BlockResult Forward::block_result(int64_t index) const {
    const int64_t group = config_.heads / config_.kv_heads;
    float* p = b_.block_out + index * group * (config_.head_dim + 2);
    return {p, p + group, p + 2 * group};
}

// residual += sum over the chosen experts, in router-rank order, of weight * down(swiglu(gate, up))
void Forward::experts(int layer, std::span<const SequenceInput> inputs) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    norm(w.ffn_norm);
    quantise_rows(b_.normed, n_, layer, "entering the experts");
    choose_experts(layer, inputs);
    sort_slots();
    lap(seconds_.router);

    const int used = config_.experts_used;
    const int slots = n_ * used;
    int active = 0;
    for (int e = 0; e < config_.experts; ++e) {
        if (b_.expert_begin[e + 1] > b_.expert_begin[e]) b_.active[active++] = e;
    }
    // One parallel region. Its tasks start in order, gate and up of every expert before any down, so that a down seldom
    // waits for its hidden vectors; whoever ends the last part of an expert's gate and up makes them.
    const FeedForward& shape = w.experts.front();
    const int chunk = std::min(row_groups(shape.gate), chunk_for(active * 2 * row_groups(shape.gate), pool_.size()));
    const int parts = ceil_div(row_groups(shape.gate), chunk);
    const int down_chunk = std::min(row_groups(shape.down), chunk_for(active * row_groups(shape.down), pool_.size()));
    const int down_parts = ceil_div(row_groups(shape.down), down_chunk);
    const int inner_tasks = active * 2 * parts;
    for (int i = 0; i < active; ++i) unhidden_[i].store(2 * parts + 1, std::memory_order_relaxed);
    const kernels::Activations entering = b_.normed.view(n_);
    const kernels::Activations hidden = b_.expert_hidden.view(slots);
    pool_.run(inner_tasks + active * down_parts, [&](int task, int) {
        const bool is_down = task >= inner_tasks;
        const int i = is_down ? (task - inner_tasks) / down_parts : task / (2 * parts);
        const int e = b_.active[i];
        const FeedForward& f = w.experts[static_cast<size_t>(e)];
        const int slot = b_.expert_begin[e];
        const int count = b_.expert_begin[e + 1] - slot;
        std::atomic<int>& unhidden = unhidden_[i];
        if (is_down) {
            platform::spin_until([&] { return unhidden.load(std::memory_order_acquire) <= 0; });
            if (unhidden.load(std::memory_order_relaxed) == kNotFinite) return;
            const int first = (task - inner_tasks) % down_parts * down_chunk;
            kernels_.matmul(f.down, first, std::min(first + down_chunk, row_groups(f.down)),
                            rows_of(hidden, slot, count), nullptr, count, b_.expert_out + int64_t{slot} * f.down.rows,
                            f.down.rows);
            return;
        }
        const bool is_up = task / parts % 2 == 1;
        const Matrix& m = is_up ? f.up : f.gate;
        const int first = task % parts * chunk;
        kernels_.matmul(m, first, std::min(first + chunk, row_groups(m)), entering, b_.slot_token + slot, count,
                        (is_up ? b_.up : b_.gate) + int64_t{slot} * m.rows, m.rows);
        if (unhidden.fetch_sub(1, std::memory_order_acq_rel) > 2) return;
        bool finite = true;
        for (int s = slot; s < slot + count && finite; ++s) finite = activate(s, layer);
        unhidden.store(finite ? 0 : kNotFinite, std::memory_order_release);
        if (!finite) throw not_finite(layer, "inside the experts");
    });

    each_row(n_, [&](int t) {
        for (int r = 0; r < used; ++r) {
            const int64_t slot = b_.slot_of[t * used + r];
            kernels_.add_scaled(b_.expert_out + slot * config_.hidden, b_.weights[t * used + r], config_.hidden,
                                b_.residual + int64_t{t} * config_.hidden);
        }
    });
    lap(seconds_.experts);
}

void Forward::choose_experts(int layer, std::span<const SequenceInput> inputs) {
    const int used = config_.experts_used;
    multiply(b_.normed, n_, {{&weights_.layers[static_cast<size_t>(layer)].router, b_.router_logits, config_.experts}});
    each_row(n_, [&](int t) {
        const float* scores = b_.router_logits + int64_t{t} * config_.experts;
        if (!std::all_of(scores, scores + config_.experts, [](float s) { return std::isfinite(s); })) {
            throw Error(ErrorCode::kNumeric, "layer " + std::to_string(layer) + ": a router logit is not finite");
        }
        kernels::route(scores, config_.experts, used, b_.chosen + t * used, b_.weights + t * used);
    });
    int64_t first_row = 0;
    for (const SequenceInput& in : inputs) {
        const auto count = static_cast<int64_t>(in.tokens.size());
        for (int64_t j = 0; in.experts != nullptr && j < count; ++j) {
            std::copy_n(b_.chosen + (first_row + j) * used, used, in.experts + (j * config_.layers + layer) * used);
        }
        first_row += count;
    }
}

// Sorts the step's (token, choice) pairs by expert: each expert's weights are read once for all of its tokens.
void Forward::sort_slots() {
    const int used = config_.experts_used;
    const int pairs = n_ * used;
    std::fill_n(b_.expert_begin, config_.experts + 1, 0);
    for (int p = 0; p < pairs; ++p) ++b_.expert_begin[b_.chosen[p] + 1];
    for (int e = 0; e < config_.experts; ++e) b_.expert_begin[e + 1] += b_.expert_begin[e];
    std::copy_n(b_.expert_begin, config_.experts, b_.active);  // the next free slot of each expert
    for (int p = 0; p < pairs; ++p) {
        const int slot = b_.active[b_.chosen[p]]++;
        b_.slot_of[p] = slot;
        b_.slot_token[slot] = p / used;
    }
}

// residual += down * swiglu(gate, up), the feed-forward of a dense model
void Forward::dense(int layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    const FeedForward& f = w.experts.front();
    norm(w.ffn_norm);
    quantise_rows(b_.normed, n_, layer, "entering the feed-forward");
    multiply(b_.normed, n_, {{&f.gate, b_.gate, config_.ffn}, {&f.up, b_.up, config_.ffn}});
    each_row(n_, [&](int t) {
        if (!activate(t, layer)) throw not_finite(layer, "inside the feed-forward");
    });
    multiply(b_.expert_hidden, n_, {{&f.down, b_.projected, config_.hidden}});
    add_projected();
    lap(seconds_.experts);
}

// logits = head * rms_norm(residual), for the rows that asked, a tile at a time
void Forward::logits(std::span<const SequenceInput> inputs, const LogitsSink& sink) {
    for (size_t begin = 0; begin < wanted_.size(); begin += kHeadTile) {
        const int count = static_cast<int>(std::min<size_t>(kHeadTile, wanted_.size() - begin));
        for (int i = 0; i < count; ++i) {
            const int64_t row = wanted_[begin + static_cast<size_t>(i)];
            kernels_.rms_norm(b_.residual + row * config_.hidden, weights_.output_norm, config_.hidden,
                              config_.norm_epsilon, b_.head_input.row(i));
        }
        quantise_rows(b_.head_input, count, config_.layers, "entering the head");
        // Of several tokens' rows the head's weights are read once: whole.
        TopLogits* only = count == 1 ? wanted_top(inputs, wanted_[begin]) : nullptr;
        if (only != nullptr && (screen_ || flash_)) {
            top_logits(*only);
            continue;
        }
        multiply(b_.head_input, count, {{&weights_.head, b_.logits, config_.vocab}});
        for (int i = 0; i < count; ++i) {
            const int row = wanted_[begin + static_cast<size_t>(i)];
            if (TopLogits* top = wanted_top(inputs, row); top != nullptr) {
                choose_top({b_.logits + int64_t{i} * config_.vocab, static_cast<size_t>(config_.vocab)}, *top);
                continue;
            }
            const int input = tokens_[static_cast<size_t>(row)].input;
            const int64_t token =
                tokens_[static_cast<size_t>(row)].position - inputs[static_cast<size_t>(input)].kv->length();
            sink(input, static_cast<int>(token),
                 {b_.logits + int64_t{i} * config_.vocab, static_cast<size_t>(config_.vocab)});
        }
    }
}

// Where the best tokens after `row` are to be put, when they are all that is wanted.
TopLogits* Forward::wanted_top(std::span<const SequenceInput> inputs, int row) const {
    const int input = tokens_[static_cast<size_t>(row)].input;
    const bool last = row + 1 == n_ || tokens_[static_cast<size_t>(row) + 1].input != input;
    return last ? inputs[static_cast<size_t>(input)].top : nullptr;
}

// The best tokens of the one row in head_input.
void Forward::top_logits(TopLogits& top) {
    const bool found = flash_ ? flash_->run(b_.head_input, top) : screen_->run(b_.head_input.view(1), b_.logits, top);
    if (found && head_mode_ != HeadMode::kChecked && head_mode_ != HeadMode::kFlashChecked) return;
    multiply(b_.head_input, 1, {{&weights_.head, b_.logits, config_.vocab}});
    const std::span<const float> all(b_.logits, static_cast<size_t>(config_.vocab));
    if (!found) {
        choose_top(all, top);
    } else if (flash_) {
        flash_->compare(all);
    } else {
        check_screen(top);
    }
}

// Compares `top` with what the whole head's logits say.
void Forward::check_screen(const TopLogits& top) {
    checked_.k = top.k;
    checked_.also = top.also;
    choose_top({b_.logits, static_cast<size_t>(config_.vocab)}, checked_);
    for (size_t i = 0; i < checked_.ids.size(); ++i) {
        const bool there = i < top.ids.size();
        if (there && top.ids[i] == checked_.ids[i] && top.logits[i] == checked_.logits[i]) continue;
        throw Error(ErrorCode::kInternal,
                    "screened head: place " + std::to_string(i) + " of " + std::to_string(checked_.ids.size()) +
                        ": expected token " + std::to_string(checked_.ids[i]) + " with logit " +
                        std::to_string(checked_.logits[i]) + ", found " +
                        (there ? "token " + std::to_string(top.ids[i]) + " with " + std::to_string(top.logits[i])
                               : std::string("none")));
    }
    if (top.ids.size() != checked_.ids.size()) {
        throw Error(ErrorCode::kInternal, "screened head: expected " + std::to_string(checked_.ids.size()) +
                                              " tokens, found " + std::to_string(top.ids.size()));
    }
}

void Forward::norm(const float* weight) {
    each_row(n_, [&](int t) {
        kernels_.rms_norm(b_.residual + int64_t{t} * config_.hidden, weight, config_.hidden, config_.norm_epsilon,
                          b_.normed.row(t));
    });
}

// The inner vector `row` of a feed-forward: swiglu of gate and up with this layer's clamp, quantised for the way down.
// False when a value is not finite.
bool Forward::activate(int row, int layer) {
    const int64_t at = int64_t{row} * config_.ffn;
    kernels_.swiglu(b_.gate + at, b_.up + at, config_.ffn, config_.clamp[static_cast<size_t>(layer)],
                    b_.expert_hidden.row(row));
    return b_.expert_hidden.quantise(kernels_, row);
}

void Forward::add_projected() {
    each_row(n_, [&](int t) {
        kernels_.add(b_.projected + int64_t{t} * config_.hidden, config_.hidden,
                     b_.residual + int64_t{t} * config_.hidden);
    });
}

// ---------------------------------------------------------------------------------------------------------------
// How the work is shared out, and where the buffers lie.

// Counts the time since the last call, or the start of the run, to `part`.
void Forward::lap(double& part) {
    const auto now = std::chrono::steady_clock::now();
    part += std::chrono::duration<double>(now - lap_start_).count();
    lap_start_ = now;
}

template <class Body>
void Forward::each_row(int rows, Body&& body) {
    if (rows <= kInlineRows) {
        for (int r = 0; r < rows; ++r) body(r);
        return;
    }
    const int chunk = ceil_div(rows, pool_.size() * 4);
    pool_.run(ceil_div(rows, chunk), [&](int task, int) {
        for (int r = task * chunk; r < std::min(rows, (task + 1) * chunk); ++r) body(r);
    });
}

void Forward::quantise_rows(const ActivationBuffer& buffer, int rows, int layer, const char* where) {
    each_row(rows, [&](int r) {
        if (!buffer.quantise(kernels_, r)) throw not_finite(layer, where);
    });
}

template <size_t N>
void Forward::multiply(const ActivationBuffer& buffer, int n, const Product (&products)[N]) {
    int groups = 0;
    for (const Product& p : products) groups += row_groups(*p.w);
    const int tiles = ceil_div(n, kTokenTile);
    const int chunk = chunk_for(groups * tiles, pool_.size());
    std::array<int, N + 1> first_task{};
    std::array<int64_t, N + 1> second_out{};
    for (size_t p = 0; p < N; ++p) {
        first_task[p + 1] = first_task[p] + ceil_div(row_groups(*products[p].w), chunk);
        second_out[p + 1] = second_out[p] + int64_t{n} * products[p].w->rows;
    }
    const int per_tile = first_task[N];
    pool_.run(per_tile * tiles, [&](int task, int) {
        const int tile = task / per_tile;
        const int within = task % per_tile;
        size_t p = 0;
        while (within >= first_task[p + 1]) ++p;
        const Product& product = products[p];
        const Matrix& w = *product.w;
        const int first = tile * kTokenTile;
        const int count = std::min(kTokenTile, n - first);
        float* out = product.out + first * product.stride;
        const int begin = (within - first_task[p]) * chunk;
        const int end = std::min(begin + chunk, row_groups(w));
        const bool second = buffer.terms == 2 && !kernels::is_float_layout(w.layout);
        const int step = second ? kSecondTermGroups : chunk;
        for (int group = begin; group < end; group += step) {
            const int stop = std::min(group + step, end);
            kernels_.matmul(w, group, stop, rows_of(buffer.view(n), first, count), nullptr, count, out, product.stride);
            if (!second) continue;
            float* more = b_.second_out + second_out[p] + int64_t{first} * w.rows;
            kernels_.matmul(w, group, stop, rows_of(buffer.view(n, 1), first, count), nullptr, count, more, w.rows);
            const int row = group * kRowGroup;
            for (int t = 0; t < count; ++t) {
                kernels_.add(more + int64_t{t} * w.rows + row, std::min(stop * kRowGroup, w.rows) - row,
                             out + t * product.stride + row);
            }
        }
    });
}

void StepBuffers::take(memory::Arena& arena, const ModelConfig& c, int max_tokens, int threads) {
    const int64_t n = max_tokens;
    const int64_t used = c.experts > 0 ? c.experts_used : 1;
    const int64_t slots = n * used;
    const int terms = c.experts > 0 ? 1 : 2;
    residual = arena.take<float>(n * c.hidden);
    normed.take(arena, n, c.hidden, terms);
    qkv = arena.take<float>(n * (c.q_rows() + 2 * int64_t{c.kv_rows()}));
    attended.take(arena, n, c.q_rows(), terms);
    projected = arena.take<float>(n * c.hidden);
    gate = arena.take<float>(slots * c.ffn);
    up = arena.take<float>(slots * c.ffn);
    expert_hidden.take(arena, slots, c.ffn, terms);
    if (c.experts > 0) {
        router_logits = arena.take<float>(n * c.experts);
        chosen = arena.take<uint16_t>(slots);
        weights = arena.take<float>(slots);
        slot_token = arena.take<int32_t>(slots);
        slot_of = arena.take<int32_t>(slots);
        expert_begin = arena.take<int32_t>(c.experts + 1);
        active = arena.take<int32_t>(c.experts);
        expert_out = arena.take<float>(slots * c.hidden);
    }
    cos = arena.take<float>(n * (c.rope_dims / 2));
    sin = arena.take<float>(n * (c.rope_dims / 2));
    block_out = arena.take<float>(block_results(c, threads) * (c.heads / c.kv_heads) * (c.head_dim + 2));
    query_rows = arena.take<float>(threads * query_rows_size(c.head_dim));
    const int64_t head_rows = std::min<int64_t>(n, kHeadTile);
    head_input.take(arena, head_rows, c.hidden, terms);
    logits = arena.take<float>(head_rows * c.vocab);
    if (terms == 2) {
        const int64_t widest = std::max<int64_t>({c.hidden, c.q_rows() + 2 * int64_t{c.kv_rows()}, 2 * int64_t{c.ffn}});
        second_out = arena.take<float>(std::max(n * widest, head_rows * c.vocab));
    }
}

uint64_t Forward::scratch_bytes(const ModelConfig& config, int max_tokens, int threads, HeadMode head) {
    memory::Arena count;
    StepBuffers().take(count, config, max_tokens, threads);
    if (head == HeadMode::kFull) return count.used();
    const bool flash = head == HeadMode::kFlash || head == HeadMode::kFlashChecked;
    return count.used() + (flash ? FlashHead::scratch_bytes(config.vocab)
                                 : ScreenedHead::scratch_bytes(config.vocab, config.hidden, kMaxTop));
}

Forward::Forward(const ModelConfig& config, const Weights& weights, const kernels::KernelTable& kernels,
                 platform::ThreadPool& pool, int max_tokens, HeadMode head)
    : config_(config),
      weights_(weights),
      kernels_(kernels),
      pool_(pool),
      arena_(scratch_bytes(config, max_tokens, pool.size())),
      inverse_frequencies_(kernels::rope_inverse_frequencies(config.rope_theta, config.rope_dims)),
      head_mode_(head) {
    b_.take(arena_, config, max_tokens, pool.size());
    tokens_.reserve(static_cast<size_t>(max_tokens));
    queries_.reserve(static_cast<size_t>(max_tokens));
    unhidden_ = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(config.experts));
    wanted_.reserve(static_cast<size_t>(max_tokens));
    if (head_mode_ == HeadMode::kFlash || head_mode_ == HeadMode::kFlashChecked) {
        flash_.emplace(weights.flash, kernels, pool);
        return;
    }
    // The screen's bound is of one term.
    if (head_mode_ == HeadMode::kFull || b_.head_input.terms == 2) return;
    screen_.emplace(weights.head, kernels, pool);
    if (!screen_->possible()) screen_.reset();
    checked_.reserve(kMaxTop, kMaxTop);
}

}  // namespace samara::model
