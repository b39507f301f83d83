"""Properties that transformers' common tests of models and of generation require.

`HOLDS` names a function of ``test_hf_common.py`` for each test of ``ModelTesterMixin`` and
``GenerationTesterMixin``, in transformers' repository, that can be asked of us; `NOT` says why
the others cannot. A test compares both with the table of ``docs/interop.md``.
"""

NO_ATTENTIONS = "there are no attention weights to return, and no implementation to choose"
NO_GPU = "needs an accelerator, or several"
HUB = "transformers 5 fetches this way of decoding as code from the hub"

NOT = {
    "attention_outputs": NO_ATTENTIONS,
    "eager_matches_sdpa_inference": NO_ATTENTIONS,
    "flash_attn_2_inference_equivalence": NO_ATTENTIONS,
    "flex_attention_with_grads": NO_ATTENTIONS,
    "custom_4d_attention_mask": NO_ATTENTIONS,
    "resize_position_vector_embeddings": "there are no positions",
    "feed_forward_chunking": "is told by `config.chunk_size_feed_forward`, which we have not",
    "keep_in_fp32_modules": "no module is named: a state is float32 in any case",
    "save_load_keys_to_ignore_on_save": "no key is left out of a file",
    "disk_offload_bin": "pickled weights are not read",
    "cpu_offload": NO_GPU,
    "model_parallelism": NO_GPU,
    "multi_gpu_data_parallel_forward": NO_GPU,
    "model_parallel_beam_search": NO_GPU,
    "tp_plan": "there is no plan that splits a layer over devices",
    "can_init_all_missing_weights": "files without all weights of the stack are refused",
    "can_be_initialized_on_meta": "some mixers compute with their initial values, so real tensors "
    "are made",
    "contrastive_generate": HUB,
    "constrained_beam_search_generate": HUB,
    "group_beam_search_generate": HUB,
    "dola_decoding_sample": HUB,
    "generate_with_quant_cache": "the state is not keys and values; refused",
    "generate_compile_model_forward": "transformers compiles only with its own kind of cache",
    "past_key_values_format": "the cache is a state, `LinrnnCache`, and no keys and values",
}

HOLDS = {
    # ModelTesterMixin
    "save_load": "saved",
    "can_use_safetensors": "saved",
    "from_pretrained_no_checkpoint": "no_checkpoint",
    "load_with_mismatched_shapes": "mismatched",
    "correct_missing_keys": "missing_head",
    "determinism": "determinism",
    "batching_equivalence": "batching",
    "forward_signature": "signature",
    "model_main_input_name": "signature",
    "training": "training",
    "training_gradient_checkpointing": "checkpointing",
    "training_gradient_checkpointing_use_reentrant_false": "checkpointing",
    "training_gradient_checkpointing_use_reentrant_true": "checkpointing",
    "gradient_checkpointing_enable_disable": "checkpointing_switch",
    "gradient_checkpointing_backward_compatibility": "checkpointing_switch",
    "peft_gradient_checkpointing_enable_disable": "adapters",
    "causal_lm_can_accept_kwargs": "items_in_batch",
    "hidden_states_output": "hidden_states",
    "retain_grad_hidden_states_attentions": "hidden_states",
    "resize_tokens_embeddings": "resized",
    "resize_embeddings_untied": "resized",
    "model_get_set_embeddings": "embeddings",
    "tied_weights_keys": "tied",
    "load_save_without_tied_weights": "tied",
    "model_weights_reload_no_missing_tied_weights": "tied",
    "model_outputs_equivalence": "tuples",
    "inputs_embeds": "embedded",
    "inputs_embeds_matches_input_ids": "embedded",
    "problem_types": "problem_types",
    "disk_offload_safetensors": "disk",
    "torch_compile_for_training": "compiled",
    "config": "configuration",
    # GenerationTesterMixin
    "greedy_generate": "greedy",
    "greedy_generate_dict_outputs": "greedy",
    "greedy_generate_dict_outputs_use_cache": "greedy",
    "sample_generate": "sampled",
    "sample_generate_dict_output": "sampled",
    "beam_sample_generate": "sampled",
    "beam_search_generate": "beams",
    "beam_search_generate_dict_output": "beams",
    "beam_search_generate_dict_outputs_use_cache": "beams",
    "generate_without_input_ids": "from_nothing",
    "assisted_decoding_matches_greedy_search": "assisted",
    "assisted_decoding_sample": "assisted",
    "prompt_lookup_decoding_matches_greedy_search": "assisted",
    "prompt_lookup_decoding_stops_at_eos": "assisted",
    "left_padding_compatibility": "left_padding",
    "generate_from_random_inputs_embeds": "generate_embedded",
    "generate_from_inputs_embeds": "generate_embedded",
    "generate_from_inputs_embeds_with_static_cache": "generate_embedded",
    "generate_continue_from_past_key_values": "continued",
    "generate_continue_from_inputs_embeds": "continued",
    "generate_with_static_cache": "static",
    "generate_methods_with_logits_to_keep": "few_logits",
}
