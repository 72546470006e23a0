"""Render what deploy/manifests takes from elsewhere: the CRDs, whose source is remediator/domain/crds.

`python -m deploy.render` writes; a test checks that the committed files are what it would write.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "remediator" / "domain" / "crds"
TARGET = ROOT / "deploy" / "manifests"


def rendered() -> dict[Path, str]:
    """Path -> text of every manifest that is not written by hand."""
    return {
        TARGET / f"00-crd-{path.name.split('.')[0]}.yaml": path.read_text() for path in sorted(SOURCE.glob("*.yaml"))
    }


def main() -> None:
    """Write the rendered manifests."""
    for path, text in rendered().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
