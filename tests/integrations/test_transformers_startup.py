# SPDX-License-Identifier: MIT
"""AITER_LIKE=1 serves new transformers models: from the interpreter's start on, reversibly, and not without it."""

import copy
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tiny_transformers import llama  # noqa: E402

from aiter_like import integrations  # noqa: E402
from aiter_like.integrations import takeover  # noqa: E402
from aiter_like.integrations import transformers as adapter  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
TAKEN = "LlamaForCausalLM is served: attention, 5 RMS norms, 2 gated activations, rotary embedding"
MODEL_CLASS, CONFIG = llama()


@pytest.fixture
def installed(monkeypatch, caplog):
    """The switch is on and transformers' adapter is installed; the messages are those of new models."""
    monkeypatch.setenv("AITER_LIKE", "1")
    monkeypatch.delenv("AITER_LIKE_DISABLE", raising=False)
    takeover.forget()
    assert integrations.install()
    caplog.set_level(logging.INFO, "aiter_like")
    caplog.clear()
    yield caplog
    integrations.uninstall()


def is_served(model) -> tuple[bool, bool]:
    """(attention, layers)."""
    return model.config._attn_implementation == "aiter_like", any("forward" in one.__dict__ for one in model.modules())


def config(**changes):
    return copy.deepcopy(CONFIG) if not changes else llama(**changes)[1]


def site_folder(tmp_path) -> Path:
    """A site-packages folder as an editable install leaves it."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "_aiter_like.pth").write_text(f"{ROOT}\n")
    shutil.copy(ROOT / "aiter_like" / "integrations" / "aiter_like_startup.pth", folder)
    return folder


def start(folder, code, **environment):
    """A program in an interpreter that reads the .pth files of `folder`."""
    clean = {name: value for name, value in os.environ.items() if name != "AITER_LIKE"}
    return subprocess.run([sys.executable, "-c", f"import site; site.addsitedir({str(folder)!r})\n{code}"],
                          env=clean | environment, capture_output=True, text=True, check=False)


def test_a_program_that_knows_nothing_of_us_is_served(tmp_path):
    """Nothing of ours is imported until a model can be made."""
    run = start(site_folder(tmp_path), """
import sys
assert "torch" not in sys.modules and "aiter_like" not in sys.modules
import transformers
assert "aiter_like" not in sys.modules
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=8,
                                                               intermediate_size=64, num_attention_heads=2))
print(model.config._attn_implementation)
""", AITER_LIKE="1")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "aiter_like\n" and f"aiter_like INFO: {TAKEN}\n" in run.stderr, run.stderr


def test_doctor_and_imports_in_another_order(tmp_path):
    """The adapter comes first and loads what the hook waits for, while it is being installed: once, and whole."""
    run = start(site_folder(tmp_path), """
import sys
from aiter_like.integrations import transformers
from aiter_like import cli
status = cli.main(["doctor", "--engine", "transformers"])
from aiter_like.integrations import takeover
assert takeover.replaced().count("PreTrainedModel.post_init") == 1, takeover.replaced()
sys.exit(status)
""", AITER_LIKE="1")
    assert "served       a new LlamaForCausalLM: attention, 3 RMS norms" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 0 and run.stderr == "", run.stderr


@pytest.mark.parametrize("environment", [{}, {"AITER_LIKE": "0"}, {"AITER_LIKE": ""}, {"AITER_LIKE": "yes"}], ids=str)
def test_without_the_switch_nothing_is_imported(tmp_path, environment):
    run = start(site_folder(tmp_path), "import sys; print([name for name in sys.modules if name.startswith('aiter_')],"
                                       "[one for one in sys.meta_path if type(one).__module__.startswith('aiter_')])",
                **environment)
    assert (run.stdout, run.stderr) == ("[] []\n", "")


def test_a_package_that_does_not_import_is_one_warning(tmp_path):
    """transformers goes on where, of the package, only the line at start-up is left."""
    folder = site_folder(tmp_path)
    (folder / "_aiter_like.pth").unlink()
    shutil.copy(ROOT / "aiter_like_startup.py", folder)
    (folder / "transformers").mkdir()
    (folder / "transformers" / "__init__.py").touch()
    (folder / "transformers" / "modeling_utils.py").write_text("import sys\nsys.modules['aiter_like'] = None\n")
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\nfrom transformers import modeling_utils"
    run = start(folder, code, AITER_LIKE="1")
    assert run.returncode == 0 and run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith("transformers keeps its own operators: ModuleNotFoundError"), run.stderr


def test_made_and_loaded_models_are_served_and_given_back(installed, tmp_path):
    stock = vars(transformers.PreTrainedModel)["post_init"].__wrapped__
    made = MODEL_CLASS(config())
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    inner, info = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    for model in (made, loaded, inner):
        assert is_served(model) == (True, True)
    assert [record.getMessage() for record in installed.records if record.name == "aiter_like"] == [
        TAKEN, TAKEN, TAKEN.replace("LlamaForCausalLM", "LlamaModel")]
    integrations.uninstall()
    for model in (made, loaded, inner, MODEL_CLASS(config())):
        assert is_served(model) == (False, False) and model.config._attn_implementation == "sdpa"
    assert vars(transformers.PreTrainedModel)["post_init"] is stock


def test_a_chosen_attention_stays(installed):
    model = MODEL_CLASS._from_config(config(), attn_implementation="eager")
    assert is_served(model) == (False, True) and model.config._attn_implementation == "eager"
    assert installed.messages == [TAKEN.replace(" attention,", "") + "; its attention stays 'eager', as chosen"]


def test_the_context_in_which_a_model_is_made_does_not_matter(installed, monkeypatch):
    """A default device, a default dtype; on the meta device nothing is made, so nothing is served."""
    with torch.device("meta"):
        assert is_served(MODEL_CLASS(config())) == (False, False)
    assert is_served(MODEL_CLASS._from_config(config(), dtype=torch.bfloat16)) == (True, True)
    assert installed.messages == [TAKEN]


def test_the_random_weights_of_a_model_are_those_without_us(installed):
    torch.manual_seed(0)
    ours = MODEL_CLASS(config()).state_dict()
    integrations.uninstall()
    torch.manual_seed(0)
    assert all(torch.equal(weight, ours[name]) for name, weight in MODEL_CLASS(config()).state_dict().items())


def test_models_of_models_are_served_as_a_whole(installed):
    """A model that is made of models which were served before: one record, and all of it is given back."""
    parts = [transformers.BertGenerationEncoder(transformers.BertGenerationConfig(
        vocab_size=8, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        **more)) for more in ({}, {"is_decoder": True, "add_cross_attention": True})]
    parts[1] = transformers.BertGenerationDecoder(parts[1].config)
    model = transformers.EncoderDecoderModel(encoder=parts[0], decoder=parts[1])
    assert parts[0] not in adapter._enabled and parts[1] not in adapter._enabled and model in adapter._enabled
    adapter.disable(model)
    assert [part.config._attn_implementation for part in (model, *parts)].count("aiter_like") == 0


def test_a_copy_is_given_back_too(installed):
    twin = copy.deepcopy(MODEL_CLASS(config()))
    assert is_served(twin) == (True, True)
    adapter.disable(twin)
    assert is_served(twin) == (False, False) and twin.config._attn_implementation == "sdpa"


def test_what_cannot_be_served_stays_with_one_warning(installed, monkeypatch):
    monkeypatch.setattr(adapter, "_forward_of", lambda module: 1 // 0)
    model = MODEL_CLASS(config())
    assert is_served(model) == (False, False) and model.config._attn_implementation == "sdpa"
    assert installed.messages == [
        "LlamaForCausalLM stays transformers' own: ZeroDivisionError: integer division or modulo by zero"]


def test_in_the_process_of_an_engine_its_adapter_decides(installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", type(sys)("vllm"))
    assert is_served(MODEL_CLASS(config())) == (False, False)
