#include "src/model/weights.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "src/formats/packed.hpp"
#include "src/formats/packed_keys.hpp"
#include "src/formats/packed_plan.hpp"
#include "src/formats/repack.hpp"
#include "src/kernels/screen.hpp"

namespace samara::model {
namespace {

using formats::Checkpoint;
using formats::Role;
using formats::Slice;
using formats::Tensor;
using kernels::Matrix;

std::string layer_name(int layer, const char* part) { return "blk." + std::to_string(layer) + "." + part + ".weight"; }

std::string extents(uint64_t cols, uint64_t rows, uint64_t experts) {
    std::string s = "[";
    s += std::to_string(cols) + ", " + std::to_string(rows);
    if (experts > 1) s += ", " + std::to_string(experts);
    s += "]";
    return s;
}

[[noreturn]] void bad_shape(const Checkpoint& c, const std::string& name, const std::string& expected,
                            const std::string& found) {
    throw Error(ErrorCode::kFormat,
                c.file() + ": tensor " + name + ": expected shape " + expected + ", found " + found);
}

const Tensor& checked(const Checkpoint& c, const std::string& name, uint64_t cols, uint64_t rows) {
    const Tensor& t = c.get(name);
    if (t.cols() != cols || t.rows() != rows || t.experts() != 1 || t.shape.size() > 3) {
        bad_shape(c, name, extents(cols, rows, 1), extents(t.cols(), t.rows(), t.experts()));
    }
    return t;
}

// The rows of weight `name`, whether the file holds it on its own or fused with others.
Slice find(const Checkpoint& c, const std::string& name, uint64_t cols, uint64_t rows, uint64_t experts = 1) {
    const std::optional<Slice> found = formats::find_slice(c, name);
    if (!found) c.get(name);  // throws the error that names what is missing
    const Tensor& t = *found->tensor;
    if (t.cols() != cols || found->rows != rows || t.experts() != experts || t.shape.size() > 3) {
        bad_shape(c, name, extents(cols, rows, experts), extents(t.cols(), found->rows, t.experts()));
    }
    return *found;
}

// Where each matrix of a layer lies in the checkpoint, fused tensors taken apart.
struct LayerSlices {
    Slice q, k, v, o, router, gate, up, down;  // gate, up and down: of expert 0
};

LayerSlices find_layer(const Checkpoint& c, const ModelConfig& k, int l) {
    const auto hidden = static_cast<uint64_t>(k.hidden);
    const auto q_rows = static_cast<uint64_t>(k.q_rows());
    const auto kv_rows = static_cast<uint64_t>(k.kv_rows());
    const auto ffn = static_cast<uint64_t>(k.ffn);
    const auto experts = static_cast<uint64_t>(k.experts > 0 ? k.experts : 1);
    const std::string suffix = k.experts > 0 ? "_exps" : "";
    const auto feed_forward = [&](const char* part, uint64_t cols, uint64_t rows) {
        return find(c, layer_name(l, (part + suffix).c_str()), cols, rows, experts);
    };
    LayerSlices s;
    s.q = find(c, layer_name(l, "attn_q"), hidden, q_rows);
    s.k = find(c, layer_name(l, "attn_k"), hidden, kv_rows);
    s.v = find(c, layer_name(l, "attn_v"), hidden, kv_rows);
    s.o = find(c, layer_name(l, "attn_output"), q_rows, hidden);
    if (k.experts > 0) s.router = find(c, layer_name(l, "ffn_gate_inp"), hidden, experts);
    s.gate = feed_forward("ffn_gate", hidden, ffn);
    s.up = feed_forward("ffn_up", hidden, ffn);
    s.down = feed_forward("ffn_down", ffn, hidden);
    return s;
}

Slice of_expert(Slice s, int expert) {
    s.expert = static_cast<uint64_t>(expert);
    return s;
}

int feed_forwards(const ModelConfig& k) { return k.experts > 0 ? k.experts : 1; }

// The layout that the first `experts` experts share, as in a packed file: both kinds of file give the same bits. File
// pages are let go as soon as they have been read, here and below: no more than a few matrices' are held at a time.
Matrix common_layout(const Checkpoint& c, const Slice& part, int experts) {
    std::vector<Slice> slices;
    slices.reserve(static_cast<size_t>(experts));
    for (int e = 0; e < experts; ++e) slices.push_back(of_expert(part, e));
    return formats::choose_layout(slices, Role::kProjection, formats::Ternarise::kLossless,
                                  [&](const Slice& slice) { formats::drop_slice(c, slice); });
}

// What a file holds beside its tensors: read once, and mapped from then on.
uint64_t header_bytes(const Checkpoint& c) {
    uint64_t bytes = c.file_bytes();
    for (const Tensor& t : c.tensors()) {
        uint64_t own = t.data.size() + t.scales.size() + t.biases.size();
        for (const auto& piece : t.pieces) own += piece.size();
        bytes -= std::min(bytes, own);
    }
    return bytes;
}

Slice head_slice(const Checkpoint& c, const ModelConfig& k) {
    return find(c, k.tied_head ? "token_embd.weight" : "output.weight", static_cast<uint64_t>(k.hidden),
                static_cast<uint64_t>(k.vocab));
}

constexpr const char* kPackedPrefix = "samara.";

}  // namespace

// Builds a Weights; one object a load.
class WeightsLoader {
  public:
    WeightsLoader(Weights& out, const Checkpoint& c, const ModelConfig& k, platform::ThreadPool& pool, uint64_t budget,
                  const Progress& progress, bool split_head)
        : out_(out), c_(c), k_(k), pool_(pool), budget_(budget), progress_(progress), split_head_(split_head) {}

    void run() {
        out_.packed_ = formats::is_packed(c_);
        total_ = c_.file_bytes();
        // First, because it is the largest: its source and its copy are held together while nothing else is.
        out_.head = load_head();
        for (int l = 0; l < k_.layers; ++l) {
            out_.layers.push_back(load_layer(l));
            report();
        }
        out_.output_norm = vector("output_norm.weight", k_.hidden);
        load_embedding();
        done_ = total_;
        report();
    }

  private:
    void report() {
        if (progress_ && !progress_(std::min(done_, total_), total_)) {
            throw Error(ErrorCode::kCancelled, "loading " + c_.file() + " was cancelled");
        }
    }

    std::byte* allocate(uint64_t bytes) {
        out_.owned_ += bytes;
        if (budget_ != 0 && out_.owned_ > budget_) {
            throw Error(ErrorCode::kMemory, c_.file() + ": the memory budget leaves " + std::to_string(budget_) +
                                                " bytes for weights, but at least " + std::to_string(out_.owned_) +
                                                " are needed");
        }
        out_.blocks_.emplace_back(bytes, "weights");
        return out_.blocks_.back().data();
    }

    const float* vector(const std::string& name, int n) {
        const Tensor& t = checked(c_, name, static_cast<uint64_t>(n), 1);
        using enum formats::TensorType;
        if (t.type != kF32 && t.type != kF16 && t.type != kBF16) {
            throw Error(ErrorCode::kFormat, c_.file() + ": tensor " + name +
                                                ": expected type F32, F16 or BF16, found " +
                                                std::string(formats::type_traits(t.type)->name));
        }
        std::vector<float> values(static_cast<size_t>(n));
        formats::dequantise_row(t, 0, 0, values.data());
        for (size_t i = 0; i < values.size(); ++i) {
            if (!std::isfinite(values[i])) {
                throw Error(ErrorCode::kFormat, c_.file() + ": tensor " + name + ": expected finite values, found " +
                                                    std::to_string(values[i]) + " at " + std::to_string(i));
            }
        }
        out_.vectors_.push_back(std::move(values));
        return out_.vectors_.back().data();
    }

    Matrix packed(const std::string& name, int rows, int cols) {
        const Matrix m = formats::packed_matrix(c_, name);
        if (m.rows != rows || m.cols != cols) {
            throw Error(ErrorCode::kFormat, c_.file() + ": " + name + ": expected " + std::to_string(rows) +
                                                " rows of " + std::to_string(cols) + ", found " +
                                                std::to_string(m.rows) + " of " + std::to_string(m.cols));
        }
        done_ += static_cast<uint64_t>(kernels::matrix_bytes(m));
        return m;
    }

    Matrix load_head() {
        if (!out_.packed_) return repacked(head_slice(c_, k_), Role::kHead);
        const Matrix stored = packed("output.weight", k_.vocab, k_.hidden);
        Matrix m = split_head_ ? formats::split_layout(stored) : stored;
        if (m.layout == stored.layout) return stored;
        std::byte* data = allocate(static_cast<uint64_t>(kernels::matrix_bytes(m)));
        m.data = data;
        constexpr int kGroups = 64;  // a task's
        const int groups = (m.rows + kernels::kRowGroup - 1) / kernels::kRowGroup;
        pool_.run((groups + kGroups - 1) / kGroups, [&](int task, int) {
            for (int g = task * kGroups; g < std::min(groups, (task + 1) * kGroups); ++g) {
                kernels::split_row_group(stored.data + g * kernels::row_group_bytes(stored), m, g, data);
            }
        });
        return m;
    }

    Matrix repacked(const Slice& slice, Role role) {
        Matrix m = formats::choose_layout(slice, role);
        if (role == Role::kHead && split_head_) m = formats::split_layout(m);
        const auto bytes = static_cast<uint64_t>(kernels::matrix_bytes(m));
        std::byte* data = allocate(bytes);
        formats::repack(slice, m, {data, bytes});
        m.data = data;
        formats::drop_slice(c_, slice);
        done_ += slice.tensor->data.size() * slice.rows / slice.tensor->rows();
        report();
        return m;
    }

    LayerWeights load_layer(int l) {
        LayerWeights w;
        w.attn_norm = vector(layer_name(l, "attn_norm"), k_.hidden);
        w.ffn_norm = vector(layer_name(l, "ffn_norm"), k_.hidden);
        if (k_.qk_norm) {
            w.q_norm = vector(layer_name(l, "attn_q_norm"), k_.head_dim);
            w.k_norm = vector(layer_name(l, "attn_k_norm"), k_.head_dim);
        }
        if (out_.packed_) {
            w.wq = packed(layer_name(l, "attn_q"), k_.q_rows(), k_.hidden);
            w.wk = packed(layer_name(l, "attn_k"), k_.kv_rows(), k_.hidden);
            w.wv = packed(layer_name(l, "attn_v"), k_.kv_rows(), k_.hidden);
            w.wo = packed(layer_name(l, "attn_output"), k_.hidden, k_.q_rows());
            if (k_.experts > 0) w.router = packed(layer_name(l, "ffn_gate_inp"), k_.experts, k_.hidden);
            w.experts = packed_feed_forwards(l);
            return w;
        }
        const LayerSlices s = find_layer(c_, k_, l);
        w.wq = repacked(s.q, Role::kProjection);
        w.wk = repacked(s.k, Role::kProjection);
        w.wv = repacked(s.v, Role::kProjection);
        w.wo = repacked(s.o, Role::kProjection);
        if (k_.experts > 0) w.router = repacked(s.router, Role::kRouter);
        w.experts = repacked_feed_forwards(s);
        return w;
    }

    static FeedForward at(const formats::ExpertLayout& layout, const std::byte* record) {
        FeedForward f{layout.gate, layout.up, layout.down};
        f.gate.data = record + layout.gate_offset;
        f.up.data = record + layout.up_offset;
        f.down.data = record + layout.down_offset;
        return f;
    }

    std::vector<FeedForward> packed_feed_forwards(int l) {
        if (k_.experts == 0) {
            return {{packed(layer_name(l, "ffn_gate"), k_.ffn, k_.hidden),
                     packed(layer_name(l, "ffn_up"), k_.ffn, k_.hidden),
                     packed(layer_name(l, "ffn_down"), k_.hidden, k_.ffn)}};
        }
        const formats::PackedExperts p = formats::packed_experts(c_, l);
        const formats::ExpertLayout& x = p.layout;
        if (p.count != k_.experts || x.gate.rows != k_.ffn || x.gate.cols != k_.hidden || x.up.rows != k_.ffn ||
            x.up.cols != k_.hidden || x.down.rows != k_.hidden || x.down.cols != k_.ffn) {
            throw Error(ErrorCode::kFormat, c_.file() + ": experts of layer " + std::to_string(l) +
                                                ": their number or shape differs from the model's keys");
        }
        std::vector<FeedForward> experts;
        experts.reserve(static_cast<size_t>(p.count));
        for (int e = 0; e < p.count; ++e) experts.push_back(at(x, p.data + static_cast<uint64_t>(e) * x.bytes));
        done_ += static_cast<uint64_t>(p.count) * x.bytes;
        return experts;
    }

    std::vector<FeedForward> repacked_feed_forwards(const LayerSlices& s) {
        const int n = feed_forwards(k_);
        const Slice* const parts[] = {&s.gate, &s.up, &s.down};
        Matrix layouts[3];
        pool_.run(3, [&](int p, int) { layouts[p] = common_layout(c_, *parts[p], n); });
        const formats::ExpertLayout layout = formats::expert_layout(layouts[0], layouts[1], layouts[2]);
        std::byte* record = allocate(layout.bytes * static_cast<uint64_t>(n));
        std::vector<FeedForward> experts;
        for (int e = 0; e < n; ++e, record += layout.bytes) experts.push_back(at(layout, record));
        pool_.run(n, [&](int e, int) {
            const FeedForward& f = experts[static_cast<size_t>(e)];
            write(of_expert(s.gate, e), f.gate);
            write(of_expert(s.up, e), f.up);
            write(of_expert(s.down, e), f.down);
        });
        for (const Slice* slice : parts) {
            done_ += slice->tensor->data.size() * slice->rows / slice->tensor->rows();
        }
        return experts;
    }

    void write(const Slice& slice, const Matrix& m) {
        // The blob lies in a block that this loader owns: writing through the view is what it is for.
        auto* data = const_cast<std::byte*>(m.data);
        formats::repack(slice, m, {data, static_cast<size_t>(kernels::matrix_bytes(m))});
        formats::drop_slice(c_, slice);
    }

    void load_embedding() {
        const std::string name = "token_embd.weight";
        if (out_.packed_ && c_.find(kPackedPrefix + name) != nullptr) {
            out_.embedding_matrix_ = packed(name, k_.vocab, k_.hidden);
        } else {
            out_.embedding_ = &checked(c_, name, static_cast<uint64_t>(k_.hidden), static_cast<uint64_t>(k_.vocab));
            if (!out_.packed_) check_embedding();  // a packed file's sums were made when it was written
        }
    }

    // The embedding stays in the file as it is, so nothing else reads all of it before a token does.
    void check_embedding() {
        constexpr int kRows = 1024;  // a task's
        pool_.run((k_.vocab + kRows - 1) / kRows, [&](int task, int) {
            std::vector<float> row(static_cast<size_t>(k_.hidden));
            for (int r = task * kRows; r < std::min(k_.vocab, (task + 1) * kRows); ++r) {
                out_.embed(r, row.data());
                if (std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })) continue;
                throw Error(ErrorCode::kFormat, c_.file() + ": tensor " + out_.embedding_->name + ", row " +
                                                    std::to_string(r) + ": expected finite values");
            }
        });
        c_.drop(out_.embedding_->data);
    }

    Weights& out_;
    const Checkpoint& c_;
    const ModelConfig& k_;
    platform::ThreadPool& pool_;
    uint64_t budget_;
    const Progress& progress_;
    bool split_head_;
    uint64_t done_ = 0, total_ = 0;
};

WeightsPlan Weights::plan(const Checkpoint& c, const ModelConfig& k, bool split_head) {
    if (formats::is_packed(c)) {
        WeightsPlan plan{c.file_bytes(), 0};
        if (split_head) {
            const Matrix stored = formats::packed_matrix(c, "output.weight");
            const Matrix split = formats::split_layout(stored);
            if (split.layout != stored.layout) plan.owned = static_cast<uint64_t>(kernels::matrix_bytes(split));
        }
        return plan;
    }
    uint64_t largest_source = 0;  // of a layer's matrices: each is held beside its copy for a moment
    const auto bytes = [&](const Slice& s, Role role) {
        Matrix m = formats::choose_layout(s, role);
        if (role == Role::kHead && split_head) m = formats::split_layout(m);
        const auto size = static_cast<uint64_t>(kernels::matrix_bytes(m));
        formats::drop_slice(c, s);
        return size;
    };
    WeightsPlan plan;
    for (int l = 0; l < k.layers; ++l) {
        const LayerSlices s = find_layer(c, k, l);
        for (const Slice* m : {&s.q, &s.k, &s.v, &s.o, &s.gate, &s.up, &s.down}) {
            largest_source = std::max(largest_source, formats::slice_bytes(*m));
        }
        for (const Slice* m : {&s.q, &s.k, &s.v, &s.o}) plan.owned += bytes(*m, Role::kProjection);
        if (k.experts > 0) plan.owned += bytes(s.router, Role::kRouter);
        // Expert 0 stands for all: reading every expert here would cost as much as the load itself.
        const formats::ExpertLayout layout =
            formats::expert_layout(common_layout(c, s.gate, 1), common_layout(c, s.up, 1), common_layout(c, s.down, 1));
        plan.owned += layout.bytes * static_cast<uint64_t>(feed_forwards(k));
    }
    const Slice head = head_slice(c, k);
    const uint64_t head_copy = bytes(head, Role::kHead);
    plan.owned += head_copy;
    const uint64_t loading_head = formats::slice_bytes(head) + head_copy;
    plan.mapped = header_bytes(c) + std::max({uint64_t{c.get("token_embd.weight").data.size()}, largest_source,
                                              loading_head - std::min(loading_head, plan.owned)});
    return plan;
}

Weights Weights::load(std::unique_ptr<Checkpoint> checkpoint, const ModelConfig& config, platform::ThreadPool& pool,
                      uint64_t budget, const Progress& progress, bool split_head) {
    Weights w;
    w.checkpoint_ = std::move(checkpoint);
    WeightsLoader loader(w, *w.checkpoint_, config, pool, budget, progress, split_head);
    formats::naming_file(*w.checkpoint_, [&] { loader.run(); });
    return w;
}

void Weights::load_flash(const ModelConfig& config) {
    const Checkpoint& c = *checkpoint_;
    const auto bad = [&](const std::string& what) {
        throw Error(ErrorCode::kFormat, c.file() + ": flash index: " + what);
    };
    if (!packed_ || !c.metadata().has(formats::packed_keys::kFlashAlways)) {
        throw Error(ErrorCode::kInvalidArgument, c.file() +
                                                     ": has no flash index: head flash needs a file packed with "
                                                     "samara pack --flash-index");
    }
    flash.rows = formats::packed_matrix(c, std::string(formats::packed_keys::kFlashRows));
    flash.centroids = formats::packed_matrix(c, std::string(formats::packed_keys::kFlashCentroids));
    const int clusters = (config.vocab + formats::kFlashClusterRows - 1) / formats::kFlashClusterRows;
    const auto check = [&](const char* name, const Matrix& m, int rows) {
        if (m.rows == rows && m.cols == config.hidden) return;
        bad(std::string(name) + ": expected " + std::to_string(rows) + " rows of " + std::to_string(config.hidden) +
            ", found " + std::to_string(m.rows) + " of " + std::to_string(m.cols));
    };
    check("rows", flash.rows, config.vocab);
    check("centroids", flash.centroids, clusters);
    if (flash.rows.layout == kernels::Layout::kNibbleKSplit) bad("rows: expected a whole layout, found a split one");
    const uint64_t always = c.metadata().get_uint(formats::packed_keys::kFlashAlways);
    if (always > static_cast<uint64_t>(clusters)) {
        bad("always: expected at most " + std::to_string(clusters) + " clusters, found " + std::to_string(always));
    }
    flash.always = static_cast<int>(always);
    const Tensor& order = c.get(std::string(formats::packed_keys::kFlashOrder));
    const auto vocab = static_cast<size_t>(config.vocab);
    if (order.type != formats::TensorType::kI8 || order.data.size() != 4 * vocab) {
        bad("order: expected " + std::to_string(4 * vocab) + " bytes of type I8, found " +
            std::to_string(order.data.size()));
    }
    flash.order.resize(vocab);
    flash.row_of.assign(vocab, -1);
    for (size_t row = 0; row < vocab; ++row) {
        uint32_t id = 0;
        for (size_t i = 0; i < 4; ++i) id |= std::to_integer<uint32_t>(order.data[4 * row + i]) << (8 * i);
        if (id >= vocab || flash.row_of[id] >= 0) {
            bad("order: row " + std::to_string(row) + ": expected each token once, found " + std::to_string(id) +
                (id >= vocab ? "" : " again"));
        }
        flash.order[row] = static_cast<int32_t>(id);
        flash.row_of[id] = static_cast<int32_t>(row);
    }
}

BytesPerToken Weights::bytes_per_token(const ModelConfig& config) const {
    const auto bytes = [](const Matrix& m) { return static_cast<uint64_t>(kernels::matrix_bytes(m)); };
    BytesPerToken b;
    for (const LayerWeights& l : layers) {
        b.attention += bytes(l.wq) + bytes(l.wk) + bytes(l.wv) + bytes(l.wo);
        const FeedForward& f = l.experts.front();
        const auto used = static_cast<uint64_t>(config.experts > 0 ? config.experts_used : 1);
        b.experts += used * (bytes(f.gate) + bytes(f.up) + bytes(f.down));
        if (config.experts > 0) b.router += bytes(l.router);
    }
    b.head = bytes(head);
    return b;
}

void Weights::embed(int32_t token, float* out) const {
    if (embedding_ != nullptr) {
        formats::dequantise_row(*embedding_, 0, static_cast<uint64_t>(token), out);
    } else {
        formats::dequantise_matrix_row(embedding_matrix_, token, out);
    }
}

}  // namespace samara::model
