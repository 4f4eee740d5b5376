"""Reading and checking a study file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.study_file import check_model_folder, load_study, study_from
from tuner.errors import FieldError

ROOT = Path(__file__).parents[3]


def study(**changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "engine": {"model": "org/model"},
        "workload": {
            "prompts": {"input_tokens": 8, "output_tokens": 8},
            "arrivals": {"kind": "closed", "concurrency": 2},
        },
        "space": {"preset": "none", "knobs": {"max_num_seqs": [8, 16]}},
        **changes,
    }


class TestLoadStudy:
    @pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
    def test_reads_every_example(self, file: Path) -> None:
        assert load_study(file).name == file.stem or file.stem.startswith(load_study(file).name[:6])

    def test_reads_json_from_standard_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(study())))
        assert load_study(Path("-")).name == "tiny"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FieldError, match="FILE: cannot be read: No such file"):
            load_study(tmp_path / "absent.yaml")

    def test_yaml_error_names_line_and_column(self, tmp_path: Path) -> None:
        file = tmp_path / "study.yaml"
        file.write_text("name: tiny\nengine: {model: [\n")
        with pytest.raises(FieldError, match=r"is not YAML: .* in line 3, column 1"):
            load_study(file)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        file = tmp_path / "study.yaml"
        file.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(FieldError, match="is not UTF-8 text"):
            load_study(file)


class TestStudyFrom:
    def test_a_model_that_is_a_path_becomes_absolute(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert study_from(study(engine={"model": "./model"})).engine.model == str(tmp_path / "model")

    def test_a_hugging_face_id_stays_as_it_is(self) -> None:
        assert study_from(study()).engine.model == "org/model"

    def test_an_unknown_knob_names_the_one_that_was_meant(self) -> None:
        with pytest.raises(FieldError, match=r"max_num_seqs") as caught:
            study_from(study(space={"preset": "none", "knobs": {"max_num_sequences": [8, 16]}}))
        assert caught.value.field == "space.knobs.max_num_sequences"


class TestCheckModelFolder:
    def test_a_folder_that_does_not_exist(self) -> None:
        with pytest.raises(FieldError, match=r"engine\.model: there is no such folder"):
            check_model_folder(study_from(study(engine={"model": "/no/such/model"})))

    def test_a_folder_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(FieldError, match=r"has no config\.json"):
            check_model_folder(study_from(study(engine={"model": str(tmp_path)})))

    def test_a_folder_with_a_model(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        check_model_folder(study_from(study(engine={"model": str(tmp_path)})))

    def test_a_hugging_face_id_is_left_to_the_worker(self) -> None:
        check_model_folder(study_from(study()))
