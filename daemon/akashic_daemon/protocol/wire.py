"""What every wire model is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Base: unknown fields are kept out of the way so that older and newer versions understand each other."""

    model_config = ConfigDict(extra="ignore")
