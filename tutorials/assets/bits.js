// The bit explorer of bits.md. The upper half is arithmetic alone and knows no page: `dsv41Bits` gives the bits that
// dsv41_numba/formats and the quantisers of dsv41_numba/ops give. The lower half draws and listens.
"use strict";

globalThis.dsv41Bits = (() => {
  const view = new DataView(new ArrayBuffer(4));
  const f32Bits = (value) => (view.setFloat32(0, value), view.getUint32(0));
  const f32FromBits = (bits) => (view.setUint32(0, bits), view.getFloat32(0));
  const isNegative = (value) => value < 0 || Object.is(value, -0);

  const toNearestEven = (value) => {
    const below = Math.floor(value);
    const over = value - below;
    return over > 0.5 || (over === 0.5 && below % 2 === 1) ? below + 1 : below;
  };

  // Each `encode` takes a float32 as a number. JavaScript's NaN has no sign, so a NaN becomes the positive one.
  const bf16 = {
    parts: [1, 8, 7],
    decode: (bits) => f32FromBits((bits << 16) >>> 0),
    encode: (value) => {
      if (Number.isNaN(value)) return 0x7fc0;
      const bits = f32Bits(value);
      return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
    },
  };

  const e4m3 = {
    parts: [1, 4, 3],
    decode: (code) => {
      const e = (code >> 3) & 15;
      const m = code & 7;
      const magnitude = (code & 0x7f) === 0x7f ? NaN : e > 0 ? 2 ** (e - 7) * (1 + m / 8) : (2 ** -6 * m) / 8;
      return code & 0x80 ? -magnitude : magnitude;
    },
    encode: (value) => {
      if (Number.isNaN(value)) return 0x7f;
      const magnitude = Math.min(Math.abs(value), 448);
      const e = Math.max((f32Bits(magnitude) >>> 23) - 127, -6);
      const q = toNearestEven(magnitude * 2 ** (3 - e)); // 8 to 16, or 0 to 8 below the smallest normal number
      return (isNegative(value) ? 0x80 : 0) | (8 * (e + 6) + q);
    },
  };

  const e8m0 = {
    parts: [0, 8, 0],
    decode: (code) => (code === 255 ? NaN : 2 ** (code - 127)),
    encode: (value) => {
      const bits = f32Bits(value);
      if (Number.isNaN(value) || bits > 0x7f000000) return 255; // above 2^127, or with a sign
      const exponent = bits >>> 23;
      const mantissa = bits & 0x7fffff;
      return exponent === 0 ? Number(mantissa > 0x400000) : exponent + Number(mantissa > 0);
    },
  };

  const E2M1_VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
  const e2m1 = {
    parts: [1, 2, 1],
    decode: (code) => (code & 8 ? -E2M1_VALUES[code & 7] : E2M1_VALUES[code]),
    encode: (value) => {
      if (Number.isNaN(value)) return 0; // no code is a NaN
      const magnitude = Math.min(Math.abs(value), 6);
      const e = Math.max((f32Bits(magnitude) >>> 23) - 127, 0);
      const q = toNearestEven(magnitude * 2 ** (1 - e));
      return (isNegative(value) ? 8 : 0) | (2 * e + q);
    },
  };

  const formats = { bf16, e4m3, e8m0, e2m1 };

  // name -> how many numbers share a scale, both formats, and the quotient that the scale is made of
  const kinds = {
    fp8: { length: 32, code: "e4m3", scale: "e8m0", floor: Math.fround(1e-4), largest: 448 },
    "fp4 e8m0": { length: 32, code: "e2m1", scale: "e8m0", floor: 6 * 2 ** -126, largest: 6 },
    "fp4 e4m3": { length: 16, code: "e2m1", scale: "e4m3", floor: 6 * 2 ** -9, largest: 6 },
  };
  const INVERSE_448 = Math.fround(1 / 448);

  // One block: bf16 patterns in, and out { amax, scaleCode, scale, codes, back }, back as bf16 patterns.
  const quantise = (kind, patterns) => {
    const { code, scale: scaleFormat, floor, largest } = kinds[kind];
    const amax = bf16.decode(Math.max(...patterns.map((bits) => bits & 0x7fff))); // a NaN has the largest pattern
    const raised = amax < floor ? floor : amax; // false for a NaN, which stays
    const quotient = Math.fround(largest === 448 ? raised * INVERSE_448 : raised / largest);
    const scaleCode = formats[scaleFormat].encode(quotient);
    const scale = formats[scaleFormat].decode(scaleCode);
    const codes = patterns.map((bits) => formats[code].encode(Math.fround(bf16.decode(bits) / scale)));
    const back = codes.map((one) => bf16.encode(Math.fround(formats[code].decode(one) * scale)));
    return { amax, scaleCode, scale, codes, back };
  };

  // The shortest decimal that `same` takes for the value.
  const shortest = (value, same) => {
    if (Number.isNaN(value)) return "nan";
    if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
    if (value === 0) return Object.is(value, -0) ? "-0" : "0";
    for (let digits = 1; digits < 17; digits++) {
      const number = Number(value.toPrecision(digits));
      const plain = Math.abs(number) >= 1e-3 && Math.abs(number) < 1e6;
      if (same(number)) return plain ? String(number) : number.toExponential().replace("e+", "e");
    }
    return String(value);
  };
  const text = (value) =>
    Number.isInteger(value) && value !== 0 && Math.abs(value) < 1e15
      ? String(value)
      : shortest(value, (number) => Math.fround(number) === value);
  const textBf16 = (bits) => shortest(bf16.decode(bits), (number) => bf16.encode(Math.fround(number)) === bits);

  // A typed number as float32: "0.3", "-1e-5", "2^-9", "inf", "nan"; undefined for anything else.
  const parse = (typed) => {
    const word = typed.trim().toLowerCase();
    const named = /^([+-]?)(inf|infinity|nan|2\^([+-]?\d{1,4}))$/.exec(word);
    if (named) {
      const magnitude = named[3] !== undefined ? 2 ** Number(named[3]) : named[2] === "nan" ? NaN : Infinity;
      return Math.fround(named[1] === "-" ? -magnitude : magnitude);
    }
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/.test(word) ? Math.fround(Number(word)) : undefined;
  };

  return { formats, kinds, quantise, text, textBf16, parse };
})();

if (typeof document !== "undefined") {
  (() => {
    const { formats, kinds, quantise, text, textBf16, parse } = globalThis.dsv41Bits;
    const EXAMPLE = [3, 1, 0.3, -0.07, 0.5, -0.5, 1.7, -2.2, 0, -0, 1e-5, 2.5, -0.9, 0.0366, 0.176, -1.25];
    const NO_NUMBER = "Type a number such as 0.3, -1e-5 or 2^-9, or inf, or nan.";
    const FACTS = {
      bf16: "16 bits, no scale",
      e4m3: "at most 448",
      e8m0: "a power of two, rounded up",
      e2m1: "at most 6",
    };

    const example = () => Array.from({ length: 32 }, (_, i) => formats.bf16.encode(Math.fround(EXAMPLE[i % 16] / (i < 16 ? 1 : 8))));
    const state = { kind: "fp8", block: example(), selected: 2, number: 0, pinned: {} };
    const wide = (code, format) => code.toString(2).padStart(bitsOf(format), "0");
    const hex = (code, format) => `0x${code.toString(16).toUpperCase().padStart(Math.ceil(bitsOf(format) / 4), "0")}`;
    const bitsOf = (format) => formats[format].parts.reduce((a, b) => a + b);
    const codeOf = (format) => state.pinned[format] ?? formats[format].encode(state.number);

    const element = (tag, attributes = {}, ...children) => {
      const made = document.createElement(tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      made.append(...children);
      return made;
    };

    // The part of a pattern that a bit belongs to, counted from the left.
    const partOf = (format, at) => {
      const [sign, exponent] = formats[format].parts;
      return at < sign ? "sign" : at < sign + exponent ? "exponent" : "mantissa";
    };

    // Arrow keys move inside a group of buttons; only one of them is reached by Tab.
    const roving = (buttons, across) => {
      const visible = () => buttons.filter((button) => !button.hidden);
      const show = (button) => buttons.forEach((other) => (other.tabIndex = other === button ? 0 : -1));
      show(buttons[0]);
      for (const button of buttons) {
        button.addEventListener("focus", () => show(button));
        button.addEventListener("keydown", (event) => {
          const all = visible();
          const at = all.indexOf(button);
          const row = across();
          const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - row, ArrowDown: at + row, Home: 0, End: all.length - 1 };
          if (!(event.key in to) || event.ctrlKey || event.altKey || event.metaKey) return;
          event.preventDefault();
          all[to[event.key]]?.focus();
        });
      }
      return show;
    };

    const setNumber = (number, pinned = {}) => {
      Object.assign(state, { number, pinned });
      state.block[state.selected] = pinned.bf16 ?? formats.bf16.encode(number);
    };

    const select = (i) => {
      state.selected = i;
      const bits = state.block[i];
      Object.assign(state, { number: formats.bf16.decode(bits), pinned: { bf16: bits } });
    };

    // -- one number ----------------------------------------------------------------------------------------------
    const numberPart = (place) => {
      const input = element("input", { id: "bits-number", type: "text", autocomplete: "off", spellcheck: "false", inputmode: "text" });
      const problem = element("p", { class: "bits-problem", id: "bits-problem", role: "alert" });
      input.setAttribute("aria-describedby", "bits-problem");
      const cards = Object.keys(formats).map((format) => card(format));
      const status = element("p", { class: "bits-spoken", role: "status" });
      place.append(
        element("p", { class: "bits-line" }, element("label", { for: "bits-number" }, "Number"), input),
        problem,
        element("div", { class: "bits-cards" }, ...cards.map((one) => one.section)),
        status,
      );
      input.addEventListener("input", () => {
        const number = parse(input.value);
        problem.textContent = number === undefined ? NO_NUMBER : "";
        input.setAttribute("aria-invalid", String(number === undefined));
        if (number === undefined) return;
        setNumber(number);
        update(input);
      });
      return (source) => {
        if (source !== input) {
          input.value = text(state.number);
          problem.textContent = "";
          input.setAttribute("aria-invalid", "false");
        }
        const lines = cards.map((one) => one.update());
        status.textContent = lines.join("; ");
      };
    };

    const card = (format) => {
      const count = bitsOf(format);
      const buttons = Array.from({ length: count }, (_, at) => {
        const part = partOf(format, at);
        const place = count - 1 - at;
        const button = element("button", { type: "button", class: `bits-bit bits-${part}`, "data-bit": place });
        button.setAttribute("aria-label", `${format} bit ${place}, ${part}`);
        button.addEventListener("click", () => {
          const code = codeOf(format) ^ (1 << place);
          setNumber(formats[format].decode(code), { [format]: code });
          update(button);
        });
        return button;
      });
      roving(buttons, () => 8);
      const shown = element("output", { class: "bits-value", "aria-live": "off" });
      const note = element("span", { class: "bits-note" });
      const row = element("div", { class: "bits-row", role: "group", "aria-label": `bits of ${format}` }, ...buttons);
      const heading = element("p", { class: "bits-head" }, element("strong", {}, format), element("span", {}, FACTS[format]));
      const section = element("div", { class: "bits-card", "data-format": format }, heading, row, shown, note);
      const showCode = () => {
        const code = codeOf(format);
        const value = formats[format].decode(code);
        wide(code, format).split("").forEach((bit, at) => {
          buttons[at].textContent = bit;
          buttons[at].setAttribute("aria-pressed", String(bit === "1"));
        });
        shown.textContent = `${hex(code, format)} = ${text(value)}`;
        note.textContent = distance(format, value);
        return `${format} ${shown.textContent}`;
      };
      return { section, update: showCode };
    };

    const distance = (format, value) => {
      const { number } = state;
      if (Number.isNaN(number)) return Number.isNaN(value) ? "a NaN" : "no code for a NaN";
      if (Number.isNaN(value)) return "no code for this number";
      if (Object.is(value, number)) return "exact";
      if (!Number.isFinite(value - number)) return "beyond its largest";
      const away = Number((value - number).toPrecision(3));
      return `off by ${away > 0 ? "+" : ""}${away}`;
    };

    // -- a block -------------------------------------------------------------------------------------------------
    const blockPart = (place) => {
      const choices = Object.entries(kinds).map(([kind, { length, code, scale }]) => {
        const radio = element("input", { type: "radio", name: "bits-kind", value: kind });
        radio.addEventListener("change", () => {
          state.kind = kind;
          if (state.selected >= length) select(0);
          update(radio);
        });
        return { kind, radio, label: element("label", {}, radio, ` ${length} × ${code}, scale ${scale}`) };
      });
      const fillers = {
        Example: example,
        Random: () => Array.from({ length: 32 }, () => formats.bf16.encode(Math.fround(4 * (Math.random() + Math.random() - 1)))),
        Zeros: () => Array(32).fill(0),
      };
      const fillButtons = Object.entries(fillers).map(([name, fill]) => {
        const button = element("button", { type: "button", class: "bits-fill" }, name);
        button.addEventListener("click", () => {
          state.block = fill();
          select(state.selected);
          update(button);
        });
        return button;
      });
      const cells = Array.from({ length: 32 }, (_, i) => {
        const parts = ["x", "code", "back"].map((part) => element("span", { class: `bits-${part}` }));
        const button = element("button", { type: "button", class: "bits-cell", "data-index": i }, ...parts);
        button.addEventListener("click", () => (select(i), update(button)));
        return { button, parts };
      });
      const grid = element("div", { class: "bits-grid", role: "group", "aria-label": "numbers of the block" }, ...cells.map((cell) => cell.button));
      const show = roving(cells.map((cell) => cell.button), () => getComputedStyle(grid).gridTemplateColumns.split(" ").length);
      const scaleBits = element("span", { class: "bits-scale" });
      const scaleText = element("output", { class: "bits-value", "aria-live": "off" });
      const bytes = element("p", { class: "bits-bytes" });
      place.append(
        element("fieldset", { class: "bits-line" }, element("legend", {}, "Block"), ...choices.map((choice) => choice.label)),
        element("p", { class: "bits-line" }, ...fillButtons),
        element("p", { class: "bits-line" }, scaleBits, scaleText),
        grid,
        bytes,
      );
      return () => {
        const { length, code, scale: scaleFormat } = kinds[state.kind];
        const made = quantise(state.kind, state.block.slice(0, length));
        for (const { kind, radio } of choices) radio.checked = kind === state.kind;
        scaleBits.replaceChildren(
          ...wide(made.scaleCode, scaleFormat).split("").map((bit, at) => element("span", { class: `bits-${partOf(scaleFormat, at)}` }, bit)),
        );
        scaleText.textContent = `amax ${text(made.amax)} → scale ${hex(made.scaleCode, scaleFormat)} = ${text(made.scale)}`;
        cells.forEach(({ button, parts }, i) => {
          button.hidden = i >= length;
          if (button.hidden) return;
          const chosen = i === state.selected;
          button.setAttribute("aria-pressed", String(chosen));
          if (chosen) show(button);
          const [number, back] = [state.block[i], made.back[i]].map(textBf16);
          const bits = wide(made.codes[i], code);
          [number, bits, back].forEach((line, at) => (parts[at].textContent = line));
          button.setAttribute("aria-label", `number ${i}: ${number}, code ${bits}, read back ${back}`);
        });
        const stored = (length * bitsOf(code)) / 8;
        bytes.textContent = `${stored} bytes of codes + 1 of scale, against ${2 * length} bytes in bf16`;
      };
    };

    const updates = [];
    const update = (source) => updates.forEach((one) => one(source));
    for (const [name, make] of [["number", numberPart], ["block", blockPart]]) {
      const place = document.querySelector(`[data-bits="${name}"]`);
      if (!place) continue;
      place.replaceChildren();
      place.classList.add("bits", "picture"); // the colours of the pictures
      updates.push(make(place));
    }
    select(state.selected);
    setNumber(Math.fround(0.3));
    update();
  })();
}
