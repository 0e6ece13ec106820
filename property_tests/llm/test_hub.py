"""Names on a model hub: what is downloaded, what is kept, and three different refusals. A local server is the hub."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from llm.hub_server import COMMIT, Hub
from nanofn import LLM, SamplingParams
from nanofn.errors import ConfigError, HubUnreachableError
from nanofn.llm.locate import embedded_model, locate

ASK = """
import json, sys
from nanofn.device.hub import fetch_from_hub
found = []
for name, revision, *without in json.loads(sys.argv[1]):
    try:
        found.append(["path", str(fetch_from_hub(name, revision, with_weights=not without))])
    except Exception as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The embedded model as a repository, with files beside it that nanofn has no use for."""
    folder = shutil.copytree(embedded_model(), tmp_path_factory.mktemp("hub") / "model")
    for name in ("modeling.py", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not wanted")
    server = Hub(folder)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def ask(hub, tmp_path_factory):
    """Ask for names in a process of its own: the library reads its settings once."""
    home = tmp_path_factory.mktemp("cache")

    def run(*names, **variables):
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        command = (sys.executable, "-c", ASK, json.dumps(names))
        done = subprocess.run(
            command, env=os.environ | settings | variables, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return run


def test_a_model_is_downloaded_once_and_found_offline(hub, ask, tmp_path):
    """Weights, configs and tokenizer, no code and no other formats; then from the cache, by revision too."""
    (online,) = ask(["owner/model", None])
    assert online[0] == "path"
    wanted = sorted(path.name for path in embedded_model().iterdir() if path.suffix in {".json", ".safetensors"})
    assert sorted(hub.served) == wanted
    (again,) = ask(["owner/model", None])
    offline = ask(["owner/model", None], ["owner/model", COMMIT], HF_HUB_OFFLINE="1")
    assert [again, *offline] == [online] * 3
    assert len(hub.served) == len(wanted)
    with LLM(online[1], max_model_len=64, max_num_seqs=2) as llm:
        assert llm.generate("Once")[0].text


def test_weights_are_not_downloaded_where_random_ones_are_made(hub, ask, tmp_path):
    """Config and tokenizer are enough; asked for afterwards, the weights alone are added."""
    hub.served.clear()
    home = {"HF_HOME": str(tmp_path)}
    (bare,) = ask(["owner/model", None, "without weights"], **home)
    assert "config.json" in hub.served
    assert "model.safetensors" not in hub.served
    with LLM(bare[1], load_format="dummy", max_model_len=64, max_num_seqs=2) as llm:
        assert len(llm.generate("Once", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3
    hub.served.clear()
    assert [bare] == ask(["owner/model", None], **home)
    assert hub.served == ["model.safetensors"]


def test_gated_missing_and_unreachable_are_three_errors(ask):
    """Each says what to do: accept and log in, check the name, check the connection."""
    names = ["gated", "missing", "broken"]
    found = ask(*[[f"owner/{name}", None] for name in names], ["owner/model", "no-such-branch"])
    assert [kind for kind, _ in found] == [
        "GatedModelError",
        "MissingModelError",
        "HubUnreachableError",
        "MissingModelError",
    ]
    texts = [text for _, text in found]
    assert "accept its terms" in texts[0]
    assert "neither a folder owner/missing nor" in texts[1]
    assert "HF_HUB_OFFLINE" in texts[2]
    assert "owner/model at revision no-such-branch" in texts[3]


def test_offline_is_an_error_of_its_own(ask):
    """Not in the cache and not to be asked; or asked, and nobody answers."""
    told = ask(["owner/other", None], HF_HUB_OFFLINE="1")
    nobody = ask(["owner/other", None], HF_ENDPOINT="http://127.0.0.1:9")
    for ((kind, text),) in (told, nobody):
        assert kind == "HubUnreachableError"
        assert "owner/other is not in the cache" in text


def test_a_name_reaches_the_hub_from_the_interface():
    """Tests run offline: the error of `LLM` is the hub's."""
    with pytest.raises(HubUnreachableError, match="owner/model"):
        LLM("owner/model")
    with pytest.raises(HubUnreachableError, match="owner/tokenizer"):
        LLM(tokenizer="owner/tokenizer")


def test_of_a_tokenizers_repository_no_weights_are_downloaded(monkeypatch):
    """They may be many gigabytes, and are not looked at."""
    asked = []

    def fetch(name, revision=None, *, with_weights=True):
        asked.append((name, with_weights))
        return embedded_model()

    monkeypatch.setattr("nanofn.llm.locate.fetch_from_hub", fetch)
    with LLM(tokenizer="owner/tokenizer", device="cpu", max_model_len=64, max_num_seqs=2) as llm:
        assert llm.tokenizer.vocab_size
    with LLM("owner/model", device="cpu", max_model_len=64, max_num_seqs=2):
        pass
    assert asked == [("owner/tokenizer", False), ("owner/model", True)]


@pytest.mark.parametrize("path", ["/no/such/folder", "no/such/folder", "./no/folder", "folder"])
def test_a_path_is_no_name(path):
    """Only two plain words with a slash between them are a name on the hub."""
    assert str(locate(path)) == os.path.normpath(path)


def test_a_folder_goes_before_the_hub(tmp_path, monkeypatch):
    """`owner/model` that is there is a folder."""
    (tmp_path / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate("owner/model").is_dir()


@pytest.mark.parametrize("model", [None, "/no/such/folder"])
def test_a_revision_is_for_names_on_the_hub(model):
    """On a path it would be passed over in silence."""
    with pytest.raises(ConfigError, match="revision is 'main'"):
        LLM(model, revision="main")
