"""The style of a trace's page; its class names are prefixed, for it also stands in notebooks."""

from __future__ import annotations

STYLE = """\
.bl-page { margin: 2em; background: #fff; color: #1d2129; }
.bl-page, .bl-trace { font: 14px/1.5 system-ui, sans-serif; }
.bl-page h1 { font-size: 1.4em; }
.bl-trace {
  margin: 1.5em 0;
  padding: 1em;
  border: 1px solid #d5d9e0;
  border-radius: 6px;
  background: #fff;
  color: #1d2129;
}
.bl-trace h2 { margin: 0; font-size: 1.15em; }
.bl-trace small { font-weight: normal; color: #6b7280; }
.bl-trace p { margin: .3em 0 .6em; }
.bl-key span { margin-right: 1.5em; color: #6b7280; }
.bl-key i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
.bl-cached { background: #8fc7a3; }
.bl-computed { background: #e8a25c; }
.bl-generated { background: #6a9bd8; }
.bl-before { background: #b3a2d6; }
.bl-writing { background: #6a9bd8; }
.bl-failed { background: #d9534f; }
.bl-tokens { display: flex; height: .8em; background: #eef0f4; }
.bl-tokens i { height: 100%; }
.bl-time {
  display: grid;
  grid-template-columns: max-content 1fr 8em;
  gap: 2px 1em;
  align-items: center;
  margin: 1em 0;
  max-height: 32em;
  overflow-y: auto;
}
.bl-name { max-width: 22em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bl-lane { position: relative; height: 1em; background: #f6f7f9; }
.bl-lane i { position: absolute; height: 100%; min-width: 1px; }
.bl-text {
  white-space: pre-wrap;
  overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, monospace;
}
.bl-template { color: #9aa1ac; }
.bl-trace mark { color: inherit; border-radius: 3px; }
.bl-gen { background: #dbe8f8; }
.bl-select { background: #d9f0e0; }
.bl-fork { display: flex; flex-wrap: wrap; gap: .8em; margin: .5em 0; white-space: normal; }
.bl-fork > details {
  flex: 1 1 20em;
  padding: .5em .8em;
  border-left: 3px solid #b3a2d6;
  background: #fafbfc;
}
.bl-trace summary { cursor: pointer; color: #6b7280; font: 13px/1.5 system-ui, sans-serif; }
.bl-note { color: #6b7280; font: 13px/1.5 system-ui, sans-serif; }
.bl-error { color: #b52b27; white-space: pre-wrap; }
"""
