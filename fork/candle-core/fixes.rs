//! Faults of candle-core 0.11.1 that the derived crate does not have; `overlay/mended/` holds what takes more than a line.
//! `FIXES.md` is this list as a page. `tests/fixes.rs` has a test for each that the published crate fails.

use candle_derive::{Edit, Fix};

pub const FIXES: &[Fix] = &[
    Fix {
        name: "f8e4m3 as f64",
        reason: "`WithDType::to_f64` of f8e4m3 calls itself for ever, and with it `to_dtype(F64)`, `to_scalar` conversions and bilinear \
                 resizing of f8e4m3. It converts.",
        edits: &[Edit {
            file: "src/dtype.rs",
            find: "|v: f8e4m3| v.to_f64()",
            replace: "|v: f8e4m3| f8e4m3::to_f64(&v)",
            count: 1,
        }],
    },
    Fix {
        name: "products with one right-hand side for all batches",
        reason: "The CPU's matmul folds the batches of the left-hand side into one matrix whenever batches lie one after the other, also \
                 when rows do not: products of transposed batches are wrong, and with them conv_transpose1d of more than one sequence. \
                 Batches are folded only where rows of all batches have one stride.",
        edits: &[Edit {
            file: "src/cpu_backend/mod.rs",
            find: "b_skip == 0 && a_skip == m * k {",
            replace: "b_skip == 0 && a_skip == m * lhs_rs {",
            count: 1,
        }],
    },
    Fix {
        name: "conv1d with a kernel that is a view",
        reason: "The CPU's conv1d makes a contiguous copy of such a kernel and then reads the original as if it were the copy. It reads \
                 the copy.",
        edits: &[Edit {
            file: "src/cpu_backend/mod.rs",
            find: "            kernel.copy_strided_src(&mut kernel_c, 0, kernel_l)?;\n",
            replace: "            kernel.copy_strided_src(&mut kernel_c, 0, kernel_l)?;\n            \
                      let kernel = &kernel_c;\n            \
                      let kernel_l = &Layout::contiguous(kernel_l.shape().clone());\n",
            count: 1,
        }],
    },
    Fix {
        name: "gather with fewer ids than elements",
        reason: "The ids of gather may be fewer along other dimensions than the one that they index; the CPU then mixes up rows. It finds \
                 the element at the id's own position.",
        edits: &[
            Edit {
                file: "src/cpu_backend/mod.rs",
                find: "            let start_src_idx = left_i * src_right_len * src_dim_len;\n",
                replace: "            let start_src_idx = crate::mended::gather::outer(left_i, ids_dims, src_dims, dim)\n                \
                          * src_right_len\n                * src_dim_len;\n",
                count: 1,
            },
            Edit {
                file: "src/cpu_backend/mod.rs",
                find: "                        let src_idx = start_src_idx + index * src_right_len + right_i;\n",
                replace: "                        let right_i = crate::mended::gather::inner(right_i, ids_dims, src_dims, dim);\n                        \
                          let src_idx = start_src_idx + index * src_right_len + right_i;\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "avg_pool2d of integers",
        reason: "The CPU multiplies the sum by the inverse of the window's size as an integer, which is 0. As on the other devices, the \
                 mean is cut off towards zero; sums are made in 64 bits.",
        edits: &[Edit {
            file: "src/cpu_backend/mod.rs",
            find: "        AvgPool2D(kernel_size, stride).map(self, layout)\n",
            replace: "        if self.dtype().is_int() {\n            \
                      return crate::mended::avg_pool::integers(self, layout, kernel_size, stride);\n        }\n        \
                      AvgPool2D(kernel_size, stride).map(self, layout)\n",
            count: 1,
        }],
    },
    Fix {
        name: "bilinear resizing of a view to its own size",
        reason: "The CPU returns the whole storage, not the part that the view shows. It returns the view's elements.",
        edits: &[Edit {
            file: "src/cpu_backend/mod.rs",
            find: "            return Ok(src.to_vec());\n",
            replace: "            return Ok(unary_map(src, layout, |v| v));\n",
            count: 1,
        }],
    },
    Fix {
        name: "functions of integers",
        reason: "The CPU panics for exp, log, sin, cos, tanh, neg, recip, sqr and sqrt of integers, and gives 0 for gelu, gelu_erf, erf and \
                 silu of them. These are errors that name function and dtype.",
        edits: &[Edit {
            file: "src/cpu_backend/mod.rs",
            find: "    fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {\n",
            replace: "    fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {\n        \
                      crate::mended::check_unary(B::NAME, self.dtype())?;\n",
            count: 1,
        }],
    },
    Fix {
        name: "zeros and ones of formats that are only stored",
        reason: "`zero_set` and `one_set` panic for f4, f6e2m3, f6e3m2 and f8e8m0, as does `ones` on devices that can allocate them. These \
                 are errors.",
        edits: &[
            Edit {
                file: "src/tensor.rs",
                find: "        self.const_set(crate::scalar::Scalar::zero(self.dtype()))\n",
                replace: "        crate::mended::check_computes(self.dtype(), \"zero_set\")?;\n        \
                          self.const_set(crate::scalar::Scalar::zero(self.dtype()))\n",
                count: 1,
            },
            Edit {
                file: "src/tensor.rs",
                find: "        self.const_set(crate::scalar::Scalar::one(self.dtype()))\n",
                replace: "        crate::mended::check_computes(self.dtype(), \"one_set\")?;\n        \
                          self.const_set(crate::scalar::Scalar::one(self.dtype()))\n",
                count: 1,
            },
            Edit {
                file: "src/tensor.rs",
                find: "        storage.const_set(crate::scalar::Scalar::one(dtype), &layout)?;\n",
                replace: "        crate::mended::check_computes(dtype, \"ones\")?;\n        \
                          storage.const_set(crate::scalar::Scalar::one(dtype), &layout)?;\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "rearranging formats whose elements are parts of bytes",
        reason: "The CPU copies elements of f4, f6e2m3 and f6e3m2 as if they were bytes: `slice_set` and the like read and write the wrong \
                 ones, or panic. These are errors.",
        edits: &[
            Edit {
                file: "src/cpu_backend/mod.rs",
                find: "        match (self, dst) {\n            (Self::U8(src), Self::U8(dst)) => copy2d_(",
                replace: "        crate::mended::small_floats::check_addressable(self.dtype(), \"copy2d\")?;\n        \
                          match (self, dst) {\n            (Self::U8(src), Self::U8(dst)) => copy2d_(",
                count: 1,
            },
            Edit {
                file: "src/cpu_backend/mod.rs",
                find: "        match (self, dst) {\n            (Self::U8(src), Self::U8(dst)) => copy_strided_src_(",
                replace: "        crate::mended::small_floats::check_addressable(self.dtype(), \"copy_strided\")?;\n        \
                          match (self, dst) {\n            (Self::U8(src), Self::U8(dst)) => copy_strided_src_(",
                count: 1,
            },
        ],
    },
    Fix {
        name: "saving formats that are only stored",
        reason: "Saving f4, f6e2m3, f6e3m2 or f8e8m0 to safetensors panics. The stored bits are written; a view that does not begin and end \
                 on a byte, or has gaps, is an error.",
        edits: &[
            Edit {
                file: "src/safetensors.rs",
                find: "        n * bytes_per_element\n",
                replace: "        crate::mended::small_floats::stored_bytes((*self).dtype(), n).unwrap_or(n * bytes_per_element)\n",
                count: 2,
            },
            Edit {
                file: "src/safetensors.rs",
                find: "            Err(Error::Msg(\"Internal error: dtype mismatch in storage\".to_string()).bt())\n        }\n    }\n}\n\npub fn load<",
                replace: "            crate::mended::small_floats::bits_of(&tensor)\n        }\n    }\n}\n\npub fn load<",
                count: 1,
            },
            Edit {
                file: "src/safetensors.rs",
                find: "        let data = [(name, self.clone())];\n",
                replace: "        crate::mended::small_floats::check_saved(self)?;\n        let data = [(name, self.clone())];\n",
                count: 1,
            },
            Edit {
                file: "src/safetensors.rs",
                find: "    Ok(st::serialize_to_file(tensors, None, filename.as_ref())?)\n",
                replace: "    tensors\n        .values()\n        .try_for_each(crate::mended::small_floats::check_saved)?;\n    \
                          Ok(st::serialize_to_file(tensors, None, filename.as_ref())?)\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "sorting NaN, and rows of no elements",
        reason: "The CPU calls NaN greater than anything and anything greater than NaN, for which Rust's sort may panic, and sorts rows of 0 \
                 elements in chunks of 0, which panics. NaN is the greatest, as in PyTorch and on ROCm; no elements are sorted already.",
        edits: &[
            Edit {
                file: "src/sort.rs",
                find: ".unwrap_or(std::cmp::Ordering::Greater)",
                replace: ".unwrap_or_else(|| crate::mended::nan_order(&vs[i as usize], &vs[j as usize]))",
                count: 2,
            },
            Edit {
                file: "src/sort.rs",
                find: ".par_chunks_exact_mut(self.last_dim)",
                replace: ".par_chunks_exact_mut(self.last_dim.max(1))",
                count: 2,
            },
            Edit {
                file: "src/sort.rs",
                find: ".par_chunks_exact(self.last_dim)",
                replace: ".par_chunks_exact(self.last_dim.max(1))",
                count: 2,
            },
        ],
    },
    Fix {
        name: "GGUF: alignment",
        reason: "`general.alignment` of 0 divides by zero, and a 64-bit or nonsensical one is taken for 32, so that all tensors are read \
                 from the wrong place. Any positive integer is taken, anything else is an error.",
        edits: &[
            Edit {
                file: "src/quantized/gguf_file.rs",
                find: "            _ => DEFAULT_ALIGNMENT,\n        };\n",
                replace: "            Some(Value::U64(v)) => *v,\n            Some(Value::I64(v)) if *v >= 0 => *v as u64,\n            \
                          Some(v) => crate::bail!(\"gguf: general.alignment is {v:?}, it has to be a positive integer\"),\n            \
                          None => DEFAULT_ALIGNMENT,\n        };\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/gguf_file.rs",
                find: "        let tensor_data_offset = position.div_ceil(alignment) * alignment;\n",
                replace: "        let Some(tensor_data_offset) = position.checked_next_multiple_of(alignment) else {\n            \
                          crate::bail!(\"gguf: general.alignment is {alignment}, it has to be a positive integer\")\n        };\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "GGUF and GGML: sizes",
        reason: "Dimensions are multiplied without a check: a tensor of 2^64 elements counts as empty, or panics. Counts of words and \
                 dimensions of GGML files are allocated before anything is read. Sizes that overflow are errors, and memory grows with \
                 what is read.",
        edits: &[
            Edit {
                file: "src/quantized/gguf_file.rs",
                find: "            let offset = reader.read_u64::<LittleEndian>()?;\n",
                replace: "            if let Err(e) = crate::mended::blocks::size_in_bytes(ggml_dtype, &dimensions) {\n                \
                          crate::bail!(\"gguf: tensor '{tensor_name}': {e}\")\n            }\n            \
                          let offset = reader.read_u64::<LittleEndian>()?;\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "    let tensor_elems = dims.iter().product::<usize>();\n    let block_size",
                replace: "    let tensor_elems = crate::mended::blocks::elem_count(&dims)?;\n    let block_size",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "    let tensor_elems = dims.iter().product::<usize>();\n    let size_in_bytes = tensor_elems * ggml_dtype.type_size() / ggml_dtype.block_size();\n",
                replace: "    let size_in_bytes = crate::mended::blocks::size_in_bytes(ggml_dtype, &dims)?;\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "    let size_in_bytes = tensor_elems / block_size * ggml_dtype.type_size();\n",
                replace: "    let size_in_bytes = crate::mended::blocks::size_in_bytes(ggml_dtype, &dims)?;\n    \
                          if raw_data.len() < size_in_bytes {\n        \
                          crate::bail!(\"a tensor of {size_in_bytes} bytes has only {}\", raw_data.len())\n    }\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "    let mut raw_data = vec![0u8; size_in_bytes];\n    reader.read_exact(&mut raw_data)?;\n",
                replace: "    let raw_data = crate::mended::blocks::read(reader, size_in_bytes)?;\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "    let mut name = vec![0u8; name_len as usize];\n    reader.read_exact(&mut name)?;\n",
                replace: "    let name = crate::mended::blocks::read(reader, name_len as usize)?;\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "            let mut word = vec![0u8; len];\n            reader.read_exact(&mut word)?;\n",
                replace: "            let word = crate::mended::blocks::read(reader, len)?;\n",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "Vec::with_capacity(n_vocab)",
                replace: "Vec::new()",
                count: 1,
            },
            Edit {
                file: "src/quantized/ggml_file.rs",
                find: "    let mut dims = vec![0u32; n_dims as usize];\n",
                replace: "    if n_dims > 4 {\n        crate::bail!(\"ggml: a tensor has {n_dims} dimensions, max is 4\")\n    }\n    \
                          let mut dims = vec![0u32; n_dims as usize];\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "GGUF and GGML: blocks from any bytes",
        reason: "`qtensor_from_ggml` reads bytes as blocks without looking at their number or alignment: too few are read past their end, \
                 and an empty f32 tensor aborts a debug build. Too few bytes are an error, and misaligned ones are copied.",
        edits: &[Edit {
            file: "src/quantized/ggml_file.rs",
            find: "    let raw_data_ptr = raw_data.as_ptr();\n    let n_blocks = size_in_bytes / std::mem::size_of::<T>();\n    \
                   let data = unsafe { std::slice::from_raw_parts(raw_data_ptr as *const T, n_blocks) };\n",
            replace: "    let data = crate::mended::blocks::of_bytes::<T>(raw_data, size_in_bytes);\n    \
                      let data: &[T] = &data;\n",
            count: 1,
        }],
    },
    Fix {
        name: "gradients of scatter and scatter_add",
        reason: "The gradients of their first operands are exchanged: what scatter overwrites gets a gradient, and where scatter_add adds, \
                 the first operand gets none. Each has its own.",
        edits: &[
            Edit {
                file: "src/backprop.rs",
                find: "                    Op::Scatter(init, indexes, src, dim) => {\n                        \
                       let init_sum_grad = grads.or_insert(init)?;\n                        \
                       *init_sum_grad = init_sum_grad.add(&grad)?;\n",
                replace: "                    Op::Scatter(init, indexes, src, dim) => {\n                        \
                          let init_sum_grad = grads.or_insert(init)?;\n                        \
                          let kept = grad.contiguous()?.scatter(indexes, &src.zeros_like()?, *dim)?;\n                        \
                          *init_sum_grad = init_sum_grad.add(&kept)?;\n",
                count: 1,
            },
            Edit {
                file: "src/backprop.rs",
                find: "                        let mask = init.ones_like()?;\n                        \
                       let mask = mask.scatter(indexes, &mask.zeros_like()?, *dim)?;\n                        \
                       *init_sum_grad = init_sum_grad.add(&grad.mul(&mask)?)?;\n",
                replace: "                        *init_sum_grad = init_sum_grad.add(&grad)?;\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "gradients of conv2d with strides that leave a remainder",
        reason: "The input's gradient took the remainder of the height for that of the width, so that images whose height and width leave \
                 different ones had none: an error of shapes. Each has its own.",
        edits: &[Edit {
            file: "src/backprop.rs",
            find: "                        let out_padding = arg.dim(2)? - out_size;\n                        \
                   let grad_arg = grad.conv_transpose2d(\n                            kernel,\n                            \
                   *padding,\n                            out_padding,\n                            *stride,\n                            \
                   *dilation,\n                        )?;\n",
            replace: "                        let out_width = (grad.dim(3)? - 1) * stride\n                            \
                      + dilation * (kernel.dim(3)? - 1)\n                            + 1\n                            \
                      - 2 * padding;\n                        \
                      let out_padding = (arg.dim(2)? - out_size).max(arg.dim(3)? - out_width);\n                        \
                      let grad_arg = grad\n                            \
                      .conv_transpose2d(kernel, *padding, out_padding, *stride, *dilation)?\n                            \
                      .narrow(2, 0, arg.dim(2)?)?\n                            .narrow(3, 0, arg.dim(3)?)?;\n",
            count: 1,
        }],
    },
    Fix {
        name: "gradients of nearest-neighbour resizing",
        reason: "The gradient replaces what other uses of the same tensor have added up so far. It is added.",
        edits: &[Edit {
            file: "src/backprop.rs",
            find: "                        *sum_grad = conv_sum;\n",
            replace: "                        *sum_grad = sum_grad.add(&conv_sum)?;\n",
            count: 2,
        }],
    },
    Fix {
        name: "gradients of pooling",
        reason: "The gradient of max_pool2d is too small by the window's size over the square of the number of maxima, and where windows do \
                 not cover the image, gradients of both kinds of pooling land on the wrong elements. The gradient of a window is shared by \
                 its maxima, and elements outside of all windows get none.",
        edits: &[
            Edit {
                file: "src/backprop.rs",
                find: "                        let grad_arg = grad.upsample_nearest2d(h, w)?;\n                        \
                       let grad_arg =\n                            \
                       (grad_arg * (1f64 / (kernel_size.0 * kernel_size.1) as f64))?;\n",
                replace: "                        let grad_arg = crate::mended::pool_grad::avg(&grad, (h, w), *kernel_size)?;\n",
                count: 1,
            },
            Edit {
                file: "src/backprop.rs",
                find: "                        let node_upsampled = node.upsample_nearest2d(h, w)?;\n                        \
                       let mask = arg.eq(&node_upsampled)?.to_dtype(arg.dtype())?;\n                        \
                       let avg = mask.avg_pool2d_with_stride(*kernel_size, *stride)?;\n                        \
                       let grad_arg = ((grad * avg)?.upsample_nearest2d(h, w)? * mask)?;\n",
                replace: "                        let grad_arg = crate::mended::pool_grad::max(arg, node, &grad, (h, w), *kernel_size)?;\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "products with Q4_0, Q4_1, Q5_0 and Q5_1 on x86",
        reason: "Q4_1, Q5_0 and Q5_1 are multiplied an element at a time, and Q4_0 is unpacked anew for every row of the other operand. Sixteen \
                 rows are unpacked once and multiplied with all rows, with AVX2 or AVX-512.",
        edits: &[Edit {
            file: "src/quantized/k_quants.rs",
            find: "    let k_in_blocks = k.div_ceil(T::BLCK_SIZE);\n\n    // Thread-local scratch buffer reused across calls to avoid per-matmul\n",
            replace: "    if crate::mended::panels::matmul(T::DTYPE, (m, k, n), lhs, crate::mended::blocks::bytes(rhs_t), dst) {\n        \
                      return Ok(());\n    }\n    let k_in_blocks = k.div_ceil(T::BLCK_SIZE);\n\n    \
                      // Thread-local scratch buffer reused across calls to avoid per-matmul\n",
            count: 1,
        }],
    },
];
