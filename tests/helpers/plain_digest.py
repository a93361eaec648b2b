"""The digest of a run's data without a key, which no run writes: anyone could try guesses at the
data with it.
"""

import hashlib
import hmac

import pytest


def plain_digest(experiment):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmac, "new", lambda key, digestmod: hashlib.new(digestmod))
        return experiment.fingerprint(b"")["data_hmac_sha256"]
