import dataclasses

import pytest

from meta.audits.measure import FOLDER
from transparity_conformance.checking.audit.variants import candidates, differing, variants_of
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import written
from transparity_conformance.checkpoints.families import FAMILIES
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING
from transparity_conformance.report.audit import CAUSES, Audit, AuditedField
from transparity_conformance.report.check.page import as_markdown, headline
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.check.view import CheckView
from transparity_conformance.report.report import Cause, Divergence, Report
from transparity_conformance.running.loading import load_port


@pytest.fixture(scope="module")
def right() -> Report:
    return check(load_port(f"{FOLDER / 'llama_module.py'}:load"), family="llama", audit=True)


def test_a_field_that_no_forward_pass_depends_on_is_not_exercised(right: Report) -> None:
    assert right.audit is not None
    assert right.audit.fields_with("not exercised") == ["pad_token_id", "bos_token_id", "eos_token_id"]
    assert "config.json eos_token_id: no call of the audit depends on it" in right.not_compared


OTHER_FORMS = {
    *("original_max_position_embeddings", "partial_rotary_factor", "sliding_window_pattern", "full_attention_interval"),
    *("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "no_rope_layer_interval"),
    "decoder_sparse_step",
}
"""Fields of config.json that are alternatives to another field of the same folder."""

OTHERS: dict[str, set[str]] = {
    **{name: {"tie_word_embeddings"} for name in ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta")},
    **{name: {"rope_scaling"} for name in ("phi3", "ministral3")},
    **{name: {"num_local_experts", "max_window_layers"} for name in ("qwen2_moe", "qwen3_moe")},
    "deepseek_v3": {"rms_norm_eps"},
    "gpt_neox": {"rope_scaling", "rope_theta"},
    "olmoe": {"num_local_experts", "head_dim"},
    "qwen3_next": {"num_local_experts", "hidden_act"},
}
"""More fields by family: alternatives to another field, and fields with only one value in the family."""


@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_that_a_family_reads_is_written_and_read_again(name: str) -> None:
    family, config = FAMILIES[name], example_config(name)
    base = written(name, family, config)
    assert base is not None
    models = (written(name, family, other) for change in candidates(config) for other in change)
    changed = {field for fields in models if fields is not None for field in differing(base, fields)}
    read = {field for row in family.rows for field in row.reads}
    assert read - changed <= OTHER_FORMS | OTHERS.get(name, set())


def test_a_pattern_of_layers_is_told_from_the_window_that_it_needs() -> None:
    every = (each for change in variants_of("qwen3", example_config("qwen3")) for each in change)
    (pattern,) = (each for each in every if each.name == "layer_types" and each.value != "absent")
    assert pattern.value == f'["{SLIDING}", "{FULL}"]'
    assert pattern.before.sliding_window == pattern.config.sliding_window


def test_the_answer_says_what_the_port_does_with_each_ignored_field_and_what_to_do() -> None:
    says = 'with hidden_act "relu", the port\'s result is the same as with "silu"'
    followed, ignored = (
        AuditedField("rope_theta", "1.0", "followed"),
        AuditedField("hidden_act", '"relu"', "ignored", says),
    )
    assert len(Audit((followed,)).lines) == 1
    first, second = Audit((followed, ignored)).lines
    assert first == "config.json: 1 of 2 fields ignored: hidden_act; 1 obeyed"
    assert second == f"– {says}"
    assert Audit((followed, ignored)).warning.startswith("the port may be wrong for other folders")
    assert Audit((followed,)).warning == ""
    warned, clean = (
        Report("llama", "agrees", None, port="my.py:load", audit=Audit(fields))
        for fields in ((followed, ignored), (followed,))
    )
    assert as_text([warned]).startswith("! my.py:load agrees, but handles 1 field wrongly")
    assert headline([warned])["text"].endswith("agrees, but handles 1 field wrongly")
    assert as_markdown([warned]).startswith("### ! my.py:load agrees, but handles 1 field wrongly")
    assert as_text([clean]).startswith("✓ my.py:load agrees with the reference")


def test_the_title_of_an_answer_says_that_only_the_audit_fails() -> None:
    audit = Audit((AuditedField("hidden_act", '"relu"', "ignored"), AuditedField("rope_theta", "1.0", "wrong")))
    faults = [Divergence(f"config.json: {cause}", 1.0, 0.1, (Cause(cause, ""),)) for cause in CAUSES.values()]
    report = Report("llama", "diverges", None, tuple(faults), port="my.py:load", audit=audit)
    assert CheckView(report).title == "my.py:load agrees, but handles 2 fields wrongly"
    assert headline([report])["text"].endswith("agrees, but handles 2 fields wrongly")
    wrong = dataclasses.replace(report, faults=(Divergence("logits", 1.0, 0.1), *faults))
    assert CheckView(wrong).title == "my.py:load differs from the reference"
    assert headline([wrong])["text"] == CheckView(wrong).title


def test_a_field_whose_other_value_the_port_refuses_is_not_called_obeyed() -> None:
    head_dim = [AuditedField("head_dim", "8", "refused", "it raised"), AuditedField("head_dim", "absent", "followed")]
    eps = [AuditedField("rms_norm_eps", "0.1", "followed"), AuditedField("rms_norm_eps", "absent", "refused")]
    audit = Audit((*head_dim, *eps))
    assert (audit.fields_with("refused"), audit.fields_with("followed")) == (["head_dim"], ["rms_norm_eps"])
