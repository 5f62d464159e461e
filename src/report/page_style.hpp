#pragma once

namespace accel {

/// The number of colors `c0`, `c1` and so on in kPageStyle.
inline constexpr int kPageColors = 8;

/// The style sheet of run_page().
inline constexpr const char* kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --back: #f6f7f9; --card: #ffffff; --text: #1c2128; --dim: #5c6570; --grid: #e6e8ec; --edge: #d5d9df;
  --c0: #2563c9; --c1: #c2570c; --c2: #1a8754; --c3: #8b44c4; --c4: #c6324b; --c5: #0b8494; --c6: #877400;
  --c7: #c13c96;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171c; --card: #1d2127; --text: #e4e7eb; --dim: #9aa4b0; --grid: #2c323a; --edge: #383f49;
    --c0: #6ea8ff; --c1: #ff9f5a; --c2: #57c98d; --c3: #c594f5; --c4: #ff7b8c; --c5: #4fc8d8; --c6: #d5bf4a;
    --c7: #f08ccb;
  }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 24px; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1320px; margin: 0 auto; }
h1 { font-size: 22px; margin: 0 0 16px; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 8px; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 16px; min-width: 0; }
.wide { margin-bottom: 16px; overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; margin-bottom: 16px; }
.note { color: var(--dim); font-size: 13px; margin: 8px 0 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: left; padding: 4px 20px 4px 0; vertical-align: top; }
th { color: var(--dim); font-weight: 500; white-space: nowrap; }
#results td, #times td { white-space: nowrap; }
#times { font-size: 13px; }
#times th, #times td { padding-right: 14px; }
#times th { white-space: normal; vertical-align: bottom; }
tbody tr + tr td { border-top: 1px solid var(--grid); }
.settings td { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px; background: currentColor; }
.bar { display: flex; height: 12px; border-radius: 3px; overflow: hidden; min-width: 320px; background: var(--edge); }
.bar span { background: currentColor; }
.rest { color: var(--dim); }
tbody tr.bars td { border-top: 0; padding-top: 0; padding-bottom: 10px; }
summary { cursor: pointer; font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--dim); font-size: 12px; }
.tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; }
.grid { stroke: var(--grid); }
.axis { stroke: var(--edge); }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.line.dashed { stroke-dasharray: 5 4; }
.mark { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 2 4; opacity: 0.7; }
.points circle { fill: currentColor; opacity: 0; stroke: transparent; stroke-width: 8; }
.points.dashed circle, .points.few circle { opacity: 1; }
.points circle:hover { opacity: 1; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
)css";

}  // namespace accel
