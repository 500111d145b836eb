use super::*;

/// Composes a profile and compares the text of all errors.
#[track_caller]
fn refused(profile: &str, expected: &[&str]) {
    assert_eq!(World::new(profile).errors().lines().collect::<Vec<_>>(), expected);
}

/// Composes a profile with a patch and compares the text of all errors.
#[track_caller]
fn patch_refused(patch: &str, expected: &[&str]) {
    let world = World::new(PROVIDER);
    world.write("retake.patch.yml", patch);
    assert_eq!(world.errors().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    refused(
        &format!("{PROVIDER}    retrypolicy: {{}}\njurnal: jsonl\ncolour: red\n"),
        &[
            "profile.yml:7:1: jurnal: unknown key \"jurnal\" (did you mean \"journal\"?); allowed here: model, providers, bundles, journal, drainTimeoutMs.",
            "profile.yml:8:1: colour: unknown key \"colour\"; allowed here: model, providers, bundles, journal, drainTimeoutMs.",
            "profile.yml:6:5: providers[0].retrypolicy: unknown key \"retrypolicy\" (did you mean \"retryPolicy\"?); allowed here: provider, adapter, baseUrl, apiKeyEnv, chaos, retryPolicy, limits, maxTokens, models, textHints, classify.",
        ],
    );
}

#[test]
fn a_wrong_type_says_what_was_found_and_what_is_right() {
    refused(
        "model: m1\nproviders: 5\nbundles: base\njournal: true\ndrainTimeoutMs: \"5\"\n",
        &[
            "profile.yml:2:1: providers: expected a list with at least one provider, but found the number 5.",
            "profile.yml:1:1: model: expected a mapping with the keys provider and model, but found the text \"m1\".",
            "profile.yml:3:1: bundles: expected a list of bundles, but found the text \"base\".",
            "profile.yml:4:1: journal: expected the kind of store for sessions, but found true.",
            "profile.yml:5:1: drainTimeoutMs: expected a whole number of milliseconds, but found the text \"5\".",
        ],
    );
}

#[test]
fn a_value_out_of_range_says_what_is_allowed() {
    refused(
        &format!(
            "{PROVIDER}    limits: {{ connectMs: 0, firstByteMs: 1.5, idleMs: 2147483648 }}\ndrainTimeoutMs: -1\n"
        ),
        &[
            "profile.yml:6:15: providers[0].limits.connectMs: 0 is not allowed here; it is a whole number of milliseconds from 1 to 2147483647.",
            "profile.yml:6:29: providers[0].limits.firstByteMs: 1.5 is not allowed here; it is a whole number of milliseconds from 1 to 2147483647.",
            "profile.yml:6:47: providers[0].limits.idleMs: 2147483648 is not allowed here; it is a whole number of milliseconds from 1 to 2147483647.",
            "profile.yml:7:1: drainTimeoutMs: -1 is not allowed here; it is a whole number of milliseconds from 0 to 2147483647.",
        ],
    );
}

#[test]
fn what_is_wrong_in_the_settings_of_a_model_is_found_at_its_key() {
    refused(
        &format!(
            "{PROVIDER}    maxTokens: 0\n    models:\n      m1: {{ maxTokens: 1.5, limits: {{ contentMs: 0, betweenMs: 1 }} }}\n      gpt-4.1:\n        maxTokns: 5\n        limits: 7\n      m3: 32000\n      \"\": {{ maxTokens: 2147483648 }}\n"
        ),
        &[
            "profile.yml:6:5: providers[0].maxTokens: 0 is not allowed here; it is a whole number of tokens from 1 to 2147483647.",
            "profile.yml:8:13: providers[0].models.m1.maxTokens: 1.5 is not allowed here; it is a whole number of tokens from 1 to 2147483647.",
            "profile.yml:8:53: providers[0].models.m1.limits.betweenMs: unknown key \"betweenMs\"; allowed here: connectMs, firstByteMs, firstContentMs, contentMs, idleMs, totalMs.",
            "profile.yml:8:39: providers[0].models.m1.limits.contentMs: 0 is not allowed here; it is a whole number of milliseconds from 1 to 2147483647.",
            "profile.yml:10:9: providers[0].models.gpt-4.1.maxTokns: unknown key \"maxTokns\" (did you mean \"maxTokens\"?); allowed here: maxTokens, limits.",
            "profile.yml:11:9: providers[0].models.gpt-4.1.limits: expected a mapping of time limits, but found the number 7.",
            "profile.yml:12:7: providers[0].models.m3: expected a mapping with the keys maxTokens and limits, but found the number 32000.",
            "profile.yml:7:5: providers[0].models.: an empty name is not allowed here; it is the name by which the provider knows the model.",
            "profile.yml:13:13: providers[0].models..maxTokens: 2147483648 is not allowed here; it is a whole number of tokens from 1 to 2147483647.",
        ],
    );
    refused(
        &format!("{PROVIDER}    maxTokens: \"5\"\n    models: [m1]\n"),
        &[
            "profile.yml:6:5: providers[0].maxTokens: expected a whole number of tokens, but found the text \"5\".",
            "profile.yml:7:5: providers[0].models: expected a mapping of models, by the name by which the provider knows each, but found a list.",
        ],
    );
    patch_refused(
        "- provider: acme\n  models: { m1: { maxTokens: -3 } }\n",
        &[
            "retake.patch.yml:2:19: [0].models.m1.maxTokens: -3 is not allowed here; it is a whole number of tokens from 1 to 2147483647.",
        ],
    );
}

#[test]
fn missing_keys_are_named_with_what_they_are() {
    refused(
        "{}",
        &[
            "profile.yml:1:1: the top of the file: the key \"model\" is missing; it is the provider and the model to ask.",
            "profile.yml:1:1: the top of the file: the key \"providers\" is missing; it is a list with at least one provider.",
        ],
    );
    refused(
        "model: { model: '' }\nproviders:\n  - {}\n",
        &[
            "profile.yml:3:5: providers[0]: the key \"provider\" is missing; it is the name of this provider.",
            "profile.yml:3:5: providers[0]: the key \"adapter\" is missing; it is the protocol that the provider speaks.",
            "profile.yml:3:5: providers[0]: the provider has neither baseUrl nor chaos; give the URL of a server, or the script of a scripted one.",
            "profile.yml:1:1: model: the key \"provider\" is missing; it is the name of one of the providers.",
            "profile.yml:1:10: model.model: an empty text is not allowed here; it is the name by which the provider knows the model.",
        ],
    );
}

#[test]
fn an_empty_profile_or_list_of_providers_is_refused() {
    refused(
        "# nothing\n",
        &["profile.yml: the top of the file: expected a mapping with the keys of a profile, but found nothing (null)."],
    );
    refused(
        "model: { provider: a, model: b }\nproviders: []\n",
        &["profile.yml:2:1: providers: an empty list is not allowed here; it is a list with at least one provider."],
    );
}

#[test]
fn a_provider_is_defined_once() {
    refused(
        &format!("{PROVIDER}  - {{ provider: acme, adapter: openai-chat, chaos: ok }}\n"),
        &[
            "profile.yml:6:7: providers[1].provider: the provider \"acme\" is already defined at profile.yml:3:5; give one of the two another name.",
        ],
    );
}

#[test]
fn the_model_names_a_provider_that_exists() {
    refused(
        &PROVIDER.replace("model: { provider: acme", "model: { provider: acne"),
        &[
            "profile.yml:1:10: model.provider: there is no provider \"acne\" (did you mean \"acme\"?); the providers of this profile are acme.",
        ],
    );
}

#[test]
fn base_url_and_chaos_exclude_each_other() {
    refused(
        &format!("{PROVIDER}    chaos: ok\n"),
        &[
            "profile.yml:6:5: providers[0].chaos: baseUrl and chaos exclude each other; keep the one where requests shall go.",
        ],
    );
}

#[test]
fn an_unknown_adapter_or_journal_is_answered_with_the_known_ones() {
    refused(
        &PROVIDER.replace("openai-chat", "openai_chat"),
        &[
            "profile.yml:4:5: providers[0].adapter: the text \"openai_chat\" is not allowed here; it is one of openai-chat, anthropic-messages, openai-responses (did you mean \"openai-chat\"?).",
        ],
    );
    refused(
        &format!("{PROVIDER}journal: memory\n"),
        &["profile.yml:6:1: journal: the text \"memory\" is not allowed here; it is one of jsonl, sqlite."],
    );
}

#[test]
fn a_base_url_is_a_plain_http_url() {
    for (url, problem) in [
        ("ftp://acme.example", "the scheme \"ftp\""),
        ("acme.example/v1", "\"acme.example/v1\" is no URL (relative URL without a base)"),
        ("https://acme.example/v1?x=1", "\"https://acme.example/v1?x=1\" has a query or a fragment"),
        ("https://u:hunter2@acme.example", "a URL with credentials in it is shown in many places"),
    ] {
        let errors = World::new(&PROVIDER.replace("https://acme.example/v1", url)).errors();
        assert!(errors.starts_with(&format!("profile.yml:5:5: providers[0].baseUrl: {problem}")), "{errors}");
        assert!(!errors.contains("hunter2"), "{errors}");
    }
}

#[test]
fn a_key_in_place_of_a_variables_name_is_not_repeated() {
    let errors = World::new(&format!("{PROVIDER}    apiKeyEnv: sk-secret-123\n")).errors();
    assert!(errors.starts_with("profile.yml:6:5: providers[0].apiKeyEnv: "), "{errors}");
    assert!(errors.contains("never the key itself") && !errors.contains("sk-secret"), "{errors}");
}

#[test]
fn a_broken_policy_is_reported_where_its_value_was_set() {
    refused(
        &format!("{PROVIDER}    retryPolicy: {{ mode: normal, maxRetries: -1 }}\n"),
        &[
            "profile.yml:6:34: providers[0].retryPolicy.maxRetries is -1, but it must be a whole number from 0 to 9007199254740991 (in the retry policy of provider \"acme\", as composed from all layers).",
        ],
    );
    refused(
        &format!("{PROVIDER}    retryPolicy: {{ mode: normal, backof: {{}} }}\n"),
        &[
            "profile.yml:6:34: providers[0].retryPolicy.backof (set to {}) is not a known key; the keys allowed here are mode, maxRetries, retryableCodes, backoff (did you mean \"backoff\"?) (in the retry policy of provider \"acme\", as composed from all layers).",
        ],
    );
    refused(
        &format!("{PROVIDER}    retryPolicy: always\n"),
        &[
            "profile.yml:6:5: providers[0].retryPolicy: expected a mapping with the keys mode, maxRetries, retryableCodes, backoff, but found the text \"always\".",
        ],
    );
}

#[test]
fn a_policy_that_two_layers_break_together_is_reported_at_the_key_that_breaks_it() {
    let world = World::new(&format!(
        "{PROVIDER}    retryPolicy: {{ mode: normal, backoff: {{ maxDelayMs: 100, initialDelayMs: 50 }} }}\n"
    ));
    world.write("retake.patch.yml", "- provider: acme\n  retryPolicy:\n    backoff:\n      initialDelayMs: 200\n");
    assert_eq!(
        world.errors(),
        "retake.patch.yml:4:7: [0].retryPolicy.backoff.initialDelayMs is 200, but it must be at most maxDelayMs, which is 100 (in the retry policy of provider \"acme\", as composed from all layers)."
    );
}

#[test]
fn a_policy_without_a_mode_is_refused_where_it_stands() {
    patch_refused(
        "- provider: acme\n  retryPolicy: { maxRetries: 3 }\n",
        &[
            "retake.patch.yml:2:3: [0].retryPolicy.mode is missing, but it must be \"normal\" or \"always\" (in the retry policy of provider \"acme\", as composed from all layers).",
        ],
    );
}

#[test]
fn a_bundle_that_does_not_exist_is_reported_where_it_is_named() {
    let world = World::new(&format!("{PROVIDER}bundles: [bas, ./gone, base, base, 5]\n"));
    let gone = world.path("gone/retake.patch.yml");
    assert_eq!(
        world.errors().lines().collect::<Vec<_>>(),
        [
            "profile.yml:6:11: bundles[0]: \"bas\" is not a bundle (did you mean \"base\"?); a bundle is one of base, retry-strategy, or the path of a directory that begins with `./`, `../` or `/`.",
            "profile.yml:6:30: bundles[3]: the bundle \"base\" is already listed as bundles[2]; remove one of the two.",
            "profile.yml:6:36: bundles[4]: expected the name of a built-in bundle or the path of a directory, but found the number 5.",
            "profile.yml:6:16: bundles[1]: the bundle \"./gone\" has no patch file: gone/retake.patch.yml does not exist.",
        ]
    );
    assert!(world.compose(&[]).unwrap_err().inputs.contains(&gone), "its creation is worth another attempt");
}

#[test]
fn a_missing_patch_of_the_command_line_is_an_error() {
    let world = World::new(PROVIDER);
    let error = world.compose(&[world.path("gone.yml")]).unwrap_err();
    assert_eq!(world.short(&error.to_string()), "gone.yml: the patch file given with --patch does not exist.");
}

#[test]
fn an_empty_patch_file_or_one_that_is_no_list_is_refused() {
    patch_refused(
        "",
        &["retake.patch.yml: a patch file is a list of patches, but this is empty; write `[]` for no changes."],
    );
    patch_refused(
        "id: llm-retry\n",
        &["retake.patch.yml:1:1: a patch file is a list of patches, but this is a mapping; write `[]` for no changes."],
    );
    patch_refused(
        "- llm-retry\n",
        &[
            "retake.patch.yml:1:3: [0]: expected a patch, a mapping with id, provider or insert, but found the text \"llm-retry\".",
        ],
    );
}

#[test]
fn a_row_is_read_strictly() {
    patch_refused(
        "- insert:\n    - { id: 5, component: a.wasm }\n    - { id: a b, component: a.wasm }\n    - { id: c, disable: true }\n    - { id: d, component: d.wasm, config: 3, disabled: yes please }\n- insert: x\n- id: llm-retry\n  confg: {}\n",
        &[
            "retake.patch.yml:2:9: [0].insert[0].id: expected the name by which patches address the row, but found the number 5.",
            "retake.patch.yml:3:9: [0].insert[1].id: the text \"a b\" is not allowed here; an id has at most 128 characters and no white space.",
            "retake.patch.yml:4:16: [0].insert[2].disable: unknown key \"disable\" (did you mean \"disabled\"?); allowed here: id, name, component, config, limits, disabled.",
            "retake.patch.yml:4:7: [0].insert[2]: the key \"component\" is missing; it is the path of a component, or `builtin:NAME`.",
            "retake.patch.yml:5:35: [0].insert[3].config: expected a mapping, but found the number 3.",
            "retake.patch.yml:5:46: [0].insert[3].disabled: expected true or false, but found the text \"yes please\".",
            "retake.patch.yml:6:3: [1].insert: expected a list of rows, but found the text \"x\".",
            "retake.patch.yml:8:3: [2].confg: unknown key \"confg\" (did you mean \"config\"?); allowed here: id, name, component, config, limits, disabled, insert, provider.",
        ],
    );
}

#[test]
fn a_patch_addresses_a_row_or_a_provider_but_not_both() {
    patch_refused(
        "- provider: acme\n  id: llm-retry\n",
        &[
            "retake.patch.yml:2:3: [0].id: unknown key \"id\"; allowed here: provider, adapter, baseUrl, apiKeyEnv, chaos, retryPolicy, limits, maxTokens, models, textHints, classify.",
        ],
    );
}

#[test]
fn a_component_is_a_file_or_a_known_built_in() {
    patch_refused(
        "- insert:\n    - { id: a, component: 'builtin:llm-rety' }\n    - { id: b, component: 'https://example.com/x.wasm' }\n",
        &[
            "retake.patch.yml:2:16: [0].insert[0].component: the text \"builtin:llm-rety\" is not allowed here; the built-in components are builtin:llm-retry, builtin:retry-strategy (did you mean \"builtin:llm-retry\"?).",
            "retake.patch.yml:3:16: [0].insert[1].component: the text \"https://example.com/x.wasm\" is not allowed here; a component is a file or `builtin:NAME`; fetch it first and give the path of the file.",
        ],
    );
}

#[test]
fn a_duplicate_id_names_both_places() {
    let world = World::new(&format!("{PROVIDER}bundles: [./one, ./two]\n"));
    world.write("one/retake.patch.yml", "- insert: [{ id: a, component: a.wasm }]\n");
    world.write("two/retake.patch.yml", "- insert:\n    - { id: a, component: a.wasm }\n    - { id: b, component: b.wasm }\n    - { id: b, component: b.wasm }\n");
    assert_eq!(
        world.errors().lines().collect::<Vec<_>>(),
        [
            "two/retake.patch.yml:2:9: [0].insert[0].id: the id \"a\" is already taken by the entry inserted at one/retake.patch.yml:1:14; give one of the two another id, or patch the first instead of inserting a second.",
            "two/retake.patch.yml:4:9: [0].insert[2].id: the id \"b\" is already taken by the entry inserted at two/retake.patch.yml:3:9; give one of the two another id, or patch the first instead of inserting a second.",
        ]
    );
}

#[test]
fn mistakes_in_several_files_are_reported_together() {
    let world = World::new(&format!("{PROVIDER}journal: x\nbundles: [./b]\n"));
    world.write("b/retake.patch.yml", "- insert: [\n");
    world.write("retake.patch.yml", "7\n");
    let errors = world.errors();
    let places: Vec<_> = errors.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["profile.yml:6:1", "b/retake.patch.yml:2:1", "retake.patch.yml:1:1"]);
}

#[test]
fn an_unknown_profile_is_refused_and_worth_another_attempt() {
    let world = World::new(PROVIDER);
    let error = compose(&world.home(), &ProfileRef::Named("wrok".into()), &[]).unwrap_err();
    assert!(error.to_string().ends_with("the profiles that exist are demo, work."), "{error}");
    assert_eq!(error.inputs, [world.home().profile_dir("wrok").join("profile.yml")]);
}
