// A port in JavaScript: `node port.mjs BUNDLE ACTUAL` reads a bundle and writes every tap of every probe, and what it
// generates greedily, if the bundle asks for that.
//
// It depends on nothing but Node. An array is {shape, data}, its data a flat Float64Array; numbers are rounded to
// float32 only when they are written.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

// safetensors: 8 bytes of length, a JSON header, the data

const READERS = {
  F32: (view, at) => view.getFloat32(at, true),
  I32: (view, at) => view.getInt32(at, true),
};

function readTensors(path) {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, 8 + length));
  const view = new DataView(bytes.buffer, bytes.byteOffset + 8 + length);
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const data = new Float64Array((end - begin) / 4);
    for (let i = 0; i < data.length; i++) data[i] = READERS[dtype](view, begin + 4 * i);
    tensors[name] = { shape, data };
  }
  return tensors;
}

function writeTensors(path, tensors) {
  const header = {};
  let end = 0;
  for (const [name, { shape, data, dtype = "F32" }] of Object.entries(tensors)) {
    header[name] = { dtype, shape, data_offsets: [end, (end += 4 * data.length)] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const bytes = Buffer.alloc(8 + text.length + end);
  bytes.writeBigUInt64LE(BigInt(text.length), 0);
  text.copy(bytes, 8);
  let at = 8 + text.length;
  for (const { data, dtype } of Object.values(tensors)) {
    for (const number of data) at = dtype === "I32" ? bytes.writeInt32LE(number, at) : bytes.writeFloatLE(number, at);
  }
  writeFileSync(path, bytes);
}

// Arrays

const last = (x) => x.shape[x.shape.length - 1];

function array(shape, at) {
  const data = new Float64Array(shape.reduce((a, b) => a * b, 1));
  for (let i = 0; i < data.length; i++) data[i] = at(i);
  return { shape, data };
}

const add = (x, y) => array(x.shape, (i) => x.data[i] + y.data[i]);

// x Wᵀ + b over the last axis; the bias may be absent.
function linear(parameters, scope, x) {
  const weight = parameters[`${scope}.weight`];
  const bias = parameters[`${scope}.bias`];
  const [out, into] = weight.shape;
  return array([...x.shape.slice(0, -1), out], (i) => {
    const row = Math.floor(i / out) * into;
    const feature = i % out;
    let sum = bias ? bias.data[feature] : 0;
    for (let j = 0; j < into; j++) sum += x.data[row + j] * weight.data[feature * into + j];
    return sum;
  });
}

// (batch, length, features) → (batch, heads, length, features / heads), consecutive pieces.
function splitHeads(x, heads) {
  const [batch, length, features] = x.shape;
  const width = features / heads;
  return array([batch, heads, length, width], (i) => {
    const feature = i % width;
    const position = Math.floor(i / width) % length;
    const head = Math.floor(i / (width * length)) % heads;
    const row = Math.floor(i / (width * length * heads));
    return x.data[(row * length + position) * features + head * width + feature];
  });
}

function mergeHeads(x) {
  const [batch, heads, length, width] = x.shape;
  return array([batch, length, heads * width], (i) => {
    const feature = i % width;
    const head = Math.floor(i / width) % heads;
    const position = Math.floor(i / (width * heads)) % length;
    const row = Math.floor(i / (width * heads * length));
    return x.data[((row * heads + head) * length + position) * width + feature];
  });
}

// Each row of the last axis by itself.
function byRow(x, change) {
  const size = last(x);
  const data = new Float64Array(x.data.length);
  for (let i = 0; i < data.length; i += size) data.set(change(x.data.subarray(i, i + size)), i);
  return { shape: x.shape, data };
}

function softmax(row) {
  const largest = Math.max(...row);
  const exponentials = row.map((score) => Math.exp(score - largest));
  const sum = exponentials.reduce((a, b) => a + b);
  return exponentials.map((number) => number / sum);
}

// Norms

const mean = (row) => row.reduce((a, b) => a + b) / row.length;
const squares = (row, center) => row.reduce((sum, number) => sum + (number - center) ** 2, 0);

// What a row is centred on, and what it is divided by, feature by feature.
const NORMS = {
  layer: (config, parameters, scope, row) => {
    const center = mean(row);
    const deviation = Math.sqrt(squares(row, center) / row.length + config.norm_eps);
    return [() => center, () => deviation];
  },
  // Over n − 1, and eps outside the root.
  "layer-unbiased": (config, parameters, scope, row) => {
    const center = mean(row);
    const deviation = Math.sqrt(squares(row, center) / (row.length - 1)) + config.norm_eps;
    return [() => center, () => deviation];
  },
  batch: (config, parameters, scope) => [
    (i) => parameters[`${scope}.running_mean`].data[i],
    (i) => Math.sqrt(parameters[`${scope}.running_var`].data[i] + config.norm_eps),
  ],
};

function norm(config, parameters, scope, x) {
  const weight = parameters[`${scope}.weight`].data;
  const bias = parameters[`${scope}.bias`].data;
  return byRow(x, (row) => {
    const [center, deviation] = NORMS[config.norm](config, parameters, scope, row);
    return row.map((number, i) => ((number - center(i)) / deviation(i)) * weight[i] + bias[i]);
  });
}

// Embeddings

function sinusoid(position, feature, features) {
  const angle = position / 10000 ** ((feature - (feature % 2)) / features);
  return feature % 2 ? Math.cos(angle) : Math.sin(angle);
}

function embed(config, parameters, stack, tokens) {
  const [batch, length] = tokens.shape;
  const features = config.embed_dim;
  const table = parameters[`${stack}.token_embedding.weight`].data;
  const learned = parameters[`${stack}.position_embedding.weight`];
  const scale = config.embedding_scale === "embed_dim" ? Math.sqrt(features) : 1;
  return array([batch, length, features], (i) => {
    const feature = i % features;
    const at = Math.floor(i / features);
    const position = at % length;
    const where = learned ? learned.data[position * features + feature] : sinusoid(position, feature, features);
    return table[tokens.data[at] * features + feature] * scale + where;
  });
}

// Attention

// `sees(row, query, key)` says what is visible.
const seesPadding = (config, tokens) => (row, query, key) =>
  config.pad_id === null || tokens.data[row * tokens.shape[1] + key] !== config.pad_id;

function seesTarget(config, tokens) {
  const real = seesPadding(config, tokens);
  const both = config.target_mask === "causal-and-padding";
  return (row, query, key) => key <= query && (!both || real(row, query, key));
}

function attention(config, parameters, scope, x, memory, sees, tap) {
  const heads = config.num_heads;
  const project = (role, from) =>
    tap(
      `${scope}.${role}`,
      config.projection === "full"
        ? splitHeads(linear(parameters, `${scope}.${role}`, from), heads)
        : linear(parameters, `${scope}.${role}`, splitHeads(from, heads)),
    );
  const query = project("query", x);
  const key = project("key", memory);
  const value = project("value", memory);
  const [batch, , queries, width] = query.shape;
  const keys = key.shape[2];
  const scale = 1 / Math.sqrt(config.attention_scale === "head_dim" ? width : config.embed_dim);
  const scores = tap(
    `${scope}.scores`,
    array([batch, heads, queries, keys], (i) => {
      const q = Math.floor(i / keys) * width;
      const k = (Math.floor(i / (keys * queries)) * keys + (i % keys)) * width;
      let sum = 0;
      for (let j = 0; j < width; j++) sum += query.data[q + j] * key.data[k + j];
      return sum * scale;
    }),
  );
  // JSON has no −∞: the configuration says "-inf". Where nothing is visible, all keys weigh alike.
  const replaced = config.mask_value === "-inf" ? -Number.MAX_VALUE / 2 : config.mask_value;
  const hidden = config.mask_order === "before-scale" ? replaced * scale : replaced;
  const masked = array(scores.shape, (i) => {
    const position = Math.floor(i / keys) % queries;
    const row = Math.floor(i / (keys * queries * heads));
    return sees(row, position, i % keys) ? scores.data[i] : hidden;
  });
  const weights = tap(`${scope}.weights`, byRow(masked, softmax));
  const gathered = array([batch, heads, queries, width], (i) => {
    const w = Math.floor(i / width) * keys;
    const v = Math.floor(i / (width * queries)) * keys * width + (i % width);
    let sum = 0;
    for (let j = 0; j < keys; j++) sum += weights.data[w + j] * value.data[v + j * width];
    return sum;
  });
  const context = tap(`${scope}.context`, mergeHeads(gathered));
  return tap(`${scope}.output`, linear(parameters, `${scope}.output`, context));
}

// Layers

function layer(config, parameters, scope, x, sees, memory, seesMemory, tap) {
  const normed = (name, value) => tap(`${scope}.${name}`, norm(config, parameters, `${scope}.${name}`, value));
  const residual = (name, value, sublayer) =>
    config.norm_position === "pre"
      ? add(value, sublayer(normed(name, value)))
      : normed(name, add(value, sublayer(value)));
  x = residual("self_attention_norm", x, (y) =>
    attention(config, parameters, `${scope}.self_attention`, y, y, sees, tap),
  );
  if (memory) {
    x = residual("cross_attention_norm", x, (y) => {
      const seen = config.memory_norm ? normed("memory_norm", memory) : memory;
      return attention(config, parameters, `${scope}.cross_attention`, y, seen, seesMemory, tap);
    });
  }
  x = residual("feed_forward_norm", x, (y) => {
    const up = linear(parameters, `${scope}.feed_forward.up`, y);
    const hidden = tap(`${scope}.feed_forward.hidden`, array(up.shape, (i) => Math.max(up.data[i], 0)));
    return tap(`${scope}.feed_forward.output`, linear(parameters, `${scope}.feed_forward.down`, hidden));
  });
  return tap(`${scope}.output`, x);
}

function stack(config, parameters, name, tokens, sees, memory, seesMemory, tap) {
  let x = tap(`${name}.embedding`, embed(config, parameters, name, tokens));
  for (let i = 0; i < config[`num_${name}_layers`]; i++) {
    x = layer(config, parameters, `${name}.layers.${i}`, x, sees, memory, seesMemory, tap);
  }
  if (config.final_norm) x = norm(config, parameters, `${name}.final_norm`, x);
  return tap(`${name}.output`, x);
}

function transformer(config, parameters, { source, target, tokens }, tap) {
  let x;
  if (config.architecture === "encoder-decoder") {
    const real = seesPadding(config, source);
    const memory = stack(config, parameters, "encoder", source, real, null, null, tap);
    x = stack(config, parameters, "decoder", target, seesTarget(config, target), memory, real, tap);
  } else if (config.architecture === "encoder") {
    x = stack(config, parameters, "encoder", tokens, seesPadding(config, tokens), null, null, tap);
  } else {
    x = stack(config, parameters, "decoder", tokens, seesTarget(config, tokens), null, null, tap);
  }
  return tap("logits", linear(parameters, "head", x));
}

// Greedy generation: tokens (batch, length), with columns of -1 after the last one.

function generate(config, parameters, { max_new_tokens, eos_id }, { prompt, source }) {
  const [batch, length] = prompt.shape;
  const rows = Array.from({ length: batch }, (_, i) => [...prompt.data.slice(i * length, (i + 1) * length)]);
  const ended = rows.map(() => false);
  for (let step = 0; step < max_new_tokens && !ended.every(Boolean); step++) {
    const context = rows.map((row) => row.slice(-config.max_length));
    const tokens = { shape: [batch, context[0].length], data: Float64Array.from(context.flat()) };
    const inputs = source ? { source, target: tokens } : { tokens };
    const { shape, data } = transformer(config, parameters, inputs, (name, value) => value);
    rows.forEach((row, i) => {
      const end = (i + 1) * shape[1] * shape[2];
      const logits = data.subarray(end - shape[2], end);
      row.push(ended[i] ? (config.pad_id ?? eos_id) : logits.indexOf(Math.max(...logits)));
      ended[i] ||= row[row.length - 1] === eos_id;
    });
  }
  const width = length + max_new_tokens;
  const written = rows.flatMap((row) => [...row, ...Array(width - row.length).fill(-1)]);
  return { shape: [batch, width], data: Float64Array.from(written), dtype: "I32" };
}

// A request has tensors of its own: a prompt, and parameters in place of some of the model's.
function answerRequests(bundle, config, parameters) {
  const { capabilities: { generation } = {} } = JSON.parse(readFileSync(join(bundle, "manifest.json"), "utf8"));
  if (!generation) return {};
  const tensors = Object.entries(readTensors(join(bundle, "generation.safetensors")));
  const answers = {};
  for (const [key, fields] of Object.entries(generation.requests)) {
    if (!/^generate\.\d+$/.test(key)) continue; // greedy ones alone
    const under = (begin) =>
      Object.fromEntries(tensors.filter(([name]) => name.startsWith(begin)).map(([name, x]) => [name.slice(begin.length), x]));
    const own = { ...parameters, ...under(`${key}/parameters/`) };
    answers[`${key}/tokens`] = generate(config, own, fields, under(`${key}/`));
  }
  return answers;
}

const [bundle, actual] = process.argv.slice(2);
const config = JSON.parse(readFileSync(join(bundle, "config.json"), "utf8"));
const parameters = readTensors(join(bundle, "parameters.safetensors"));

const probes = {};
for (const [name, tokens] of Object.entries(readTensors(join(bundle, "inputs.safetensors")))) {
  const [probe, input] = name.split("/");
  (probes[probe] ??= {})[input] = tokens;
}

const taps = {};
for (const [probe, inputs] of Object.entries(probes)) {
  transformer(config, parameters, inputs, (name, value) => (taps[`${probe}/${name}`] = value));
}
writeTensors(actual, { ...taps, ...answerRequests(bundle, config, parameters) });
