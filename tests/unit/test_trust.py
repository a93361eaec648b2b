from raydpzv.trust import require_trust, trust_code


def test_no_trust_inside_trust_leaves_things_as_they_are(tmp_path):
    with trust_code(), trust_code(False):
        require_trust(tmp_path, "plan.toml", ["own:model"])
