"""The description of the API that programs read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi.openapi.models import OpenAPI


@pytest.fixture
def document(lite: httpx.Client) -> dict[str, Any]:
    """The OpenAPI document."""
    found: dict[str, Any] = lite.get("/openapi.json").json()
    return found


@pytest.fixture
def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All operations by method and path."""
    return {
        f"{verb.upper()} {path}": operation
        for path, item in document["paths"].items()
        for verb, operation in item.items()
    }


def test_is_valid(document: dict[str, Any]) -> None:
    assert OpenAPI.model_validate(document).info.title == "Nightshift"


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(node: Any) -> set[str]:
        below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        own = {node["$ref"]} if isinstance(node, dict) and isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, below))

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_operation_is_described(operations: dict[str, dict[str, Any]]) -> None:
    assert len(operations) >= 20
    assert [name for name, operation in operations.items() if not operation.get("description")] == []


def test_every_operation_describes_its_errors(operations: dict[str, dict[str, Any]]) -> None:
    for operation in operations.values():
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert "422" not in operation["responses"]


def test_all_but_the_health_checks_ask_for_a_token(operations: dict[str, dict[str, Any]]) -> None:
    assert {name for name, operation in operations.items() if "security" not in operation} == {
        "GET /api/v1/healthz",
        "GET /api/v1/readyz",
    }
